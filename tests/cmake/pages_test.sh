#!/usr/bin/env bash
# Man pages and completions, as deploy/make_pages.py writes them: each option and each command of --help is in its page and in both
# completions, and bash completes with them.
#   pages_test.sh PYTHON make_pages.py PROGRAM...
set -euo pipefail
python=$1 script=$2
shift 2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
fail() { printf 'FAILED: %s\n' "$*" >&2; exit 1; }
mkdir "$scratch/bin"
for program in "$@"; do ln -s "$program" "$scratch/bin/"; done
PATH=$scratch/bin:$PATH  # `kvstorectl disk` looks for kvstore-node
"$python" "$script" --bin "$scratch/bin" --out "$scratch" --version 1.2.3 --date 2026-01-02 > "$scratch/said" || fail 'it does not run'

count=0
# look WORDS...: one command, then those below it
look() {
  local program=$1 page word option help plain names
  page=$(find "$scratch/man" -name "$(tr ' ' '-' <<< "$*").[18]")
  [ -s "$page" ] || fail "$*: no page"
  help=$("$@" --help)
  # Backslashes that are there for troff only.
  plain=$(sed 's/\\-/-/g; s/\\&//g; s/\\e/\\/g; s/\\f[BR]//g' "$page")
  names=$(grep -A 1 -xE '\.TP' <<< "$plain")
  for option in $(grep -oE '^ +(-[a-z],)?--[a-z][a-z-]*' <<< "$help" | grep -oE -- '--[a-z][a-z-]*'); do
    count=$((count + 1))
    grep -qE -- "^(-[a-z],)?$option([ {]|\$)" <<< "$names" || fail "$*: the page has no $option"
    grep -qE -- "[ ']${option}[ ']" "$scratch/bash/$program" || fail "$*: bash does not complete $option"
    grep -qE -- "'$option:" "$scratch/zsh/_$program" || fail "$*: zsh does not complete $option"
  done
  for word in $(sed -n '/^Subcommands:$/,/^$/s/^  \([a-z][a-z-]*\) .*/\1/p' <<< "$help"); do
    grep -qxE "$word( .*)?" <<< "$plain" || fail "$*: the page has no $word"
    look "$@" "$word"
  done
}
for program in "$@"; do look "$(basename "$program")"; done
look kvstore-node disk
[ "$count" -gt 200 ] || fail "only $count options found"

# completes EXPECTED WORDS...: what bash offers for the last word has EXPECTED
completes() {
  local expected=$1
  shift
  COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
  "_${1//-/_}"
  [[ " ${COMPREPLY[*]} " == *" $expected "* ]] || fail "after '${*:1:$#-1}' bash offers for '${!#}': ${COMPREPLY[*]}"
}
for program in "$@"; do
  # shellcheck source=/dev/null
  source "$scratch/bash/$(basename "$program")"
done
compopt() { :; }  # works inside a completion only
completes cluster kvstorectl cl
completes drain kvstorectl cluster dr
completes --wait-seconds kvstorectl cluster drain --wa
completes lfu kvstore-node --eviction-policy l
completes verify kvstore-node disk ve
completes put kvstore-bench run --op p
completes "$scratch/said" kvstore-node --config "$scratch/sa"
COMP_WORDS=(kvstorectl status --) COMP_CWORD=2
_kvstorectl
[[ " ${COMPREPLY[*]} " != *" --wait-seconds "* ]] || fail 'an option of another command is offered'

if command -v zsh > /dev/null; then
  for program in "$@"; do zsh -n "$scratch/zsh/_$(basename "$program")" || fail "zsh: $program"; done
fi
if command -v man > /dev/null; then
  for page in "$scratch"/man/*; do
    warnings=$(LC_ALL=C.UTF-8 MANWIDTH=120 man --warnings -l "$page" 2>&1 > /dev/null) || fail "man: $page"
    [ -z "$warnings" ] || fail "man: $page: $warnings"
  done
fi
echo "pages_test: $count options"
