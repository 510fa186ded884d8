#!/usr/bin/env bash
# Runs the tests of tests/NAME that are written for Node.js: tests/node/run.sh NAME [FILE...] (default: *.test.js).
#
# They are copied to $GEM_NODE_BUILD/NAME (default build/node) and run there beside the packages that NAME's
# package-lock.json names, so that nothing is written into the source tree. The page's own modules lie in
# $GEM_NODE_BUILD/assets. GEM_PROGRAM is the program under test. Exit status 77: skipped, the reason is printed.
set -euo pipefail
source=$(cd "$(dirname "$0")/../.." && pwd)
name=$1
shift
build=${GEM_NODE_BUILD:-$source/build/node}
export GEM_PROGRAM=${GEM_PROGRAM:-$source/build/gem} GEM_SOURCE_DIR=$source

skip() {
  printf '%s: Skipped\nnode tests %s: %s\n' "$name" "$name" "$1"
  exit 77
}
command -v node >/dev/null && command -v npm >/dev/null || skip "Node.js and npm are not installed (tools/setup.sh test)"
[[ $(node -p 'process.versions.node.split(".")[0]') -ge 18 ]] || skip "Node.js $(node --version) is older than 18"

mkdir -p "$build/$name"
(
  flock 9 # ctest may run several files of one folder at once
  cp "$source/tests/$name/"* "$build/$name/"
  mkdir -p "$build/assets"
  cp "$source/src/server/page/assets/"* "$build/assets/"
  echo '{"type": "module"}' >"$build/package.json"
  cd "$build/$name"
  if [[ -f package-lock.json ]] && ! cmp -s package-lock.json .installed-lock; then
    npm ci --no-audit --no-fund --ignore-scripts >npm.log 2>&1 || { tail -n 20 npm.log; exit 1; }
    cp package-lock.json .installed-lock
  fi
) 9>"$build/$name.lock" || { [[ -n ${CI:-} ]] && exit 1; skip "npm ci failed (no network?)"; }

cd "$build/$name"
[[ $# -gt 0 ]] || set -- *.test.js
if grep -qs 'from "./browser.js"' "$@" && ! [[ -x ${CHROMIUM:-/usr/bin/chromium} ]]; then
  skip "no Chromium at ${CHROMIUM:-/usr/bin/chromium} (tools/setup.sh test, or set CHROMIUM)"
fi
exec node --test --test-reporter=spec "$@"
