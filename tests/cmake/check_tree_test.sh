#!/usr/bin/env bash
# cmake/check_tree finds what nobody meant to commit.
set -euo pipefail
script=$1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
fail() { echo "FAILED: $*" >&2; exit 1; }

cd "$scratch"
status=0
"$script" "$scratch" 2> /dev/null || status=$?
[ "$status" = 2 ] || fail "status $status outside a repository"
git init -q .
mkdir base
echo text > base/result.h
echo text > README.md
git add .
"$script" "$scratch" || fail 'it refuses a good tree'
cp /bin/true base/program
head -c 1048577 /dev/zero > base/large
mkdir other
echo text > other/file
echo text > stray
git add .
said=$("$script" "$scratch") && fail 'it takes all of it'
for line in 'base/program: a compiled program' 'base/large: 1048577 bytes' 'other/file: outside' 'stray: not one of'; do
  grep -q "^$line" <<< "$said" || fail "it did not say '$line' but: $said"
done
