#!/usr/bin/env bash
# cmake/check_walks takes a walk that is as README.md says, and names each fault of one that is not.
set -euo pipefail
script=$1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
fail() { echo "FAILED: $*" >&2; exit 1; }

seq 300 > "$scratch/first.h"
seq 200 > "$scratch/second.cc"
# page SIZE LINE...: README.md with a walk of that size
page() {
  printf '# it\n\n## Follow a block\n\n**get**, %s, in this order:\n\n' "$1" > "$scratch/README.md"
  printf '    %s\n' "${@:2}" >> "$scratch/README.md"
  printf '\n## Use it\n\n    1 beyond.cc   no part of a walk\n' >> "$scratch/README.md"
}
good=('1 first.h    the question' '2 second.cc  the answer')
page '2 files, 500 lines' "${good[@]}"
said=$("$script" "$scratch") || fail "it refuses a true walk: $said"
[ "$said" = 'walk get: 2 files, 500 lines' ] || fail "it says: $said"
for size in 600 400; do
  page "2 files, $size lines" "${good[@]}"
  "$script" "$scratch" > /dev/null || fail "it refuses $size lines for 500"
done

# refused WORDS: the walk is refused, with these words
refused() { said=$("$script" "$scratch") && fail "it takes a walk: $1"; grep -qF "$1" <<< "$said" || fail "it did not say '$1' but: $said"; }
for size in 601 399; do
  page "2 files, $size lines" "${good[@]}"
  refused "says $size lines, its files have 500"
done
page '3 files, 500 lines' "${good[@]}"
refused 'says 3 files and lists 2'
page '2 files, 500 lines' '1 first.h  the question' '3 second.cc  the answer'
refused 'their numbers have gaps'
page '2 files, 500 lines' '1 first.h  the question' '2 gone.cc  the answer'
refused 'has gone.cc, which is no file'
echo '# it' > "$scratch/README.md"
refused 'no walk'
