#!/usr/bin/env bash
# Installs the Debian packages that building, testing or checking gem needs and this machine lacks. Says what it
# does; downloads nothing else. Usage: tools/setup.sh build [test] [lint] [bench]
#
# PROGRAM=PACKAGE: any program of that name will do, wherever it came from (Node.js of its own archive brings an npm
# that Debian's package would fight with).
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p build

declare -A packages=(
  [build]="g++ cmake ninja-build make nlohmann-json3-dev libcli11-dev libfmt-dev libspdlog-dev libboost1.81-dev
    libcurl4-openssl-dev libssl-dev ca-certificates"
  # Node.js runs the tests of the web page (in Chromium) and of the official clients; python3 and npm get the real-size
  # vocabulary for the tokenizer's tests.
  [test]="libgtest-dev clang libclang-rt-14-dev python3=python3 node=nodejs npm=npm chromium=chromium"
  [lint]="clang clang-format clang-tidy libgtest-dev git=git"
  [bench]="libbenchmark-dev"
)

missing=()
for what in "$@"; do
  [[ -v packages[$what] ]] || { echo "setup: unknown part '$what' (known: ${!packages[*]})" >&2; exit 2; }
  for package in ${packages[$what]}; do
    if [[ $package == *=* ]] && command -v "${package%%=*}" >/dev/null; then continue; fi
    package=${package#*=}
    dpkg-query -W -f='${db:Status-Status}\n' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
  done
done
[[ ${#missing[@]} -eq 0 ]] && exit 0

if ! command -v apt-get >/dev/null; then
  echo "setup: this machine has no apt-get; install the equivalents of: ${missing[*]}" >&2
  exit 1
fi
as_root=()
if [[ $(id -u) -ne 0 ]]; then
  command -v sudo >/dev/null || { echo "setup: run as root, or install: ${missing[*]}" >&2; exit 1; }
  as_root=(sudo)
fi
echo "setup: installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
{
  "${as_root[@]}" apt-get update
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${missing[@]}"
} >build/setup.log 2>&1 || { tail -n 20 build/setup.log >&2; exit 1; }
