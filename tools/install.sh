#!/usr/bin/env bash
# Installs gem and the bundled model. RubyGems calls its program gem too: another program of that name is never
# overwritten or put in the shade without saying so. Usage: tools/install.sh PREFIX NAME
set -euo pipefail
cd "$(dirname "$0")/.."
prefix=$1 name=$2
target=$prefix/bin/$name

is_ours() { "$1" --version 2>/dev/null </dev/null | grep -qE '^gem [0-9.]+$' && "$1" inspect --help >/dev/null 2>&1; }

if [[ -e $target ]] && ! is_ours "$target"; then
  echo "install: $target exists and is another program; choose a name: make install NAME=gem4" >&2
  exit 1
fi
other=$(command -v "$name" || true)
if [[ -n $other && $(readlink -f "$other") != $(readlink -f "$target" 2>/dev/null || echo "$target") ]] && ! is_ours "$other"; then
  echo "install: another program named $name is at $other (RubyGems?), and one of the two would hide the other; choose a name: make install NAME=gem4" >&2
  exit 1
fi
install -D -m 755 build/gem "$target"
for model in gem-demo.gguf mtp-gem-demo.gguf; do
  install -D -m 644 "models/$model" "$prefix/share/gem/$model"
done
echo "installed $target, and the bundled model and its drafter below $prefix/share/gem"
