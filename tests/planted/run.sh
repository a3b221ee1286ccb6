#!/usr/bin/env bash
# Plants the bugs of tests/planted/*.patch, one at a time, in a copy of the tree; each must make at least one test fail.
#
#   tests/planted/run.sh              all of them
#   tests/planted/run.sh NAME...      only these (a patch's file name without .patch)
#
# A patch begins with:
#   What: the bug, in words
#   Build: targets that hold the tests which should notice
#   Tests: regular expression of test names, as for ctest -R; each part of 'A|B' must match a test
# that of a bug in the Python package with What and this instead (tests/planted/python.sh):
#   Python: expression of test names, as for pytest -k
#
# The tests are first run without any bug: they must pass there, or their failing would prove nothing. A bug is caught when a
# test ran and failed, crashed or hung. A build that breaks, an expression that matches no test and a program that does not
# start catch nothing. Prints 'N planted, N caught' last; exits 0 only if those are equal. The copy stays in build/planted, so
# that a second run is quick. tests/cmake/planted_runner_test.sh tests this script.
set -euo pipefail
cd "$(dirname "$0")/../.."
root=$PWD
here=tests/planted

say() { printf '%s\n' "$*"; }
header() { awk -v key="$2:" '/^(---|diff )/ { exit } index($0, key) == 1 { sub(/^[^:]*: */, ""); print; exit }' "$1"; }

patches=()
if [ $# -gt 0 ]; then
  for name in "$@"; do
    [ -f "$here/${name%.patch}.patch" ] || { echo "run.sh: no $here/${name%.patch}.patch" >&2; exit 2; }
    patches+=("$root/$here/${name%.patch}.patch")
  done
else
  patches=("$root/$here"/*.patch)
fi
of_python=() compiled=()
for patch in "${patches[@]}"; do
  if [ -n "$(header "$patch" Python)" ]; then
    keys=(What) of_python+=("$patch")
  else
    keys=(What Build Tests) compiled+=("$patch")
  fi
  for key in "${keys[@]}"; do
    [ -n "$(header "$patch" "$key")" ] || { echo "run.sh: $patch has no line '$key: ...'" >&2; exit 2; }
  done
done
patches=("${compiled[@]}")

# A copy of the sources as they are now. Unchanged files keep their time, so nothing is built twice.
tree=$root/build/planted/tree
mkdir -p "$tree"
fresh=$(mktemp -d "$root/build/planted/fresh.XXXXXX")
trap 'rm -rf "$fresh"' EXIT
tar -c --exclude=./build --exclude=./build-* --exclude=./.git . | tar -x -C "$fresh"
(cd "$fresh" && find . -type f -print0) | while IFS= read -r -d '' file; do
  cmp -s "$fresh/$file" "$tree/$file" || { mkdir -p "$tree/$(dirname "$file")" && cp -p "$fresh/$file" "$tree/$file" && touch "$tree/$file"; }
done
(cd "$tree" && find . -path ./build -prune -o -type f -print0) | while IFS= read -r -d '' file; do
  [ -e "$fresh/$file" ] || rm "$tree/$file"
done
cd "$tree"

export CCACHE_BASEDIR=$tree CCACHE_NOHASHDIR=1 GTEST_COLOR=no KV_SIM_SEEDS=${KV_SIM_SEEDS:-100}
log=$root/build/planted/log
mkdir -p "$log"
planted=0 caught=0
# shellcheck source=tests/planted/python.sh
. "$root/$here/python.sh"
plant_in_python "${of_python[@]}"
build() { cmake --build --preset release -j "$(nproc)" --target "$@"; }
# A bug may well hang a test, or have it take memory without end: that is noticed too, after a minute or 6 GiB.
run_tests() (
  ulimit -v $((6 << 20))
  timeout 600 ctest --test-dir build/release -j "$(nproc)" --timeout 60 --no-tests=error --output-on-failure -R "$1"
)
# dead_parts EXPRESSION: its parts that match no test. Parentheses would need a parser: then it is taken whole.
dead_parts() {
  local parts=("$1") part matching
  case $1 in *[\(\)\[\\]*) ;; *) IFS='|' read -r -a parts <<< "$1" ;; esac
  for part in "${parts[@]}"; do
    matching=$(ctest --test-dir build/release -N -R "${part:-^$}" 2> /dev/null || true)
    grep -qE '^ *Test +#' <<< "$matching" || printf "'%s' " "$part"
  done
}
# failed_tests LOG: the tests that ran and failed. '***Not Run' proves nothing: the program was not there.
failed_tests() {
  sed -nE 's/^ *[0-9]+\/[0-9]+ Test +#[0-9]+: ([^ ]+) .*\*\*\*(Failed|Timeout|Exception).*/\1/p' "$1"
}

if [ ${#patches[@]} = 0 ]; then
  say "$planted planted, $caught caught"
  [ "$planted" -eq "$caught" ]
  exit
fi
targets=() expression=
for patch in "${patches[@]}"; do
  read -r -a more <<< "$(header "$patch" Build)"
  targets+=("${more[@]}")
  expression+=${expression:+|}$(header "$patch" Tests)
done
mapfile -t targets < <(printf '%s\n' "${targets[@]}" | sort -u)
# What bugs change is compiled alone, so that each costs one source and not the eight that are joined elsewhere. All that any bug
# changes, so that the next turn finds the others' objects.
alone=$(sed -n 's#^+++ b/\(.*\.cc\)$#\1#p' "$root/$here"/*.patch | sort -u | paste -sd ';')
# Without nvcc: no planted test needs its module, and a bug in a header of the kernels would cost ten minutes.
if ! cmake --preset release -D KV_CUDA=OFF -D "KV_COMPILE_ALONE=$alone" > "$log/sound.log" 2>&1 || ! build "${targets[@]}" >> "$log/sound.log" 2>&1 ||
  ! run_tests "$expression" >> "$log/sound.log" 2>&1; then
  tail -n 40 "$log/sound.log"
  say "run.sh: without any bug, the tests do not pass; planting bugs would prove nothing"
  exit 1
fi
say "sound: $(grep -o '[0-9]* tests passed.*\|100% tests passed.*' "$log/sound.log" | tail -n 1)"

declare -A dead=()
for patch in "${patches[@]}"; do dead[$(basename "$patch" .patch)]=$(dead_parts "$(header "$patch" Tests)"); done

revert() { patch -p1 -s -R --no-backup-if-mismatch < "$1" > /dev/null; }

for patch in "${patches[@]}"; do
  name=$(basename "$patch" .patch)
  planted=$((planted + 1))
  if [ -n "${dead[$name]}" ]; then
    say "MISSED  $name: no test matches ${dead[$name]% }, so nothing could have noticed it; bring its line 'Tests:' up to date"
    continue
  fi
  if ! patch -p1 -s --no-backup-if-mismatch --dry-run < "$patch" > "$log/$name.log" 2>&1; then
    say "MISSED  $name: the patch does not apply any more; bring it up to date"
    continue
  fi
  patch -p1 -s --no-backup-if-mismatch < "$patch" > /dev/null
  read -r -a targets <<< "$(header "$patch" Build)"
  if ! build "${targets[@]}" > "$log/$name.log" 2>&1; then
    grep -m 3 -E 'error:' "$log/$name.log" || tail -n 5 "$log/$name.log"
    say "MISSED  $name: it does not compile, which proves nothing; bring it up to date"
    revert "$patch"
    continue
  fi
  status=0
  run_tests "$(header "$patch" Tests)" >> "$log/$name.log" 2>&1 || status=$?
  mapfile -t failed < <(failed_tests "$log/$name.log")
  if [ "$status" != 0 ] && [ ${#failed[@]} -eq 0 ]; then
    # A test that fails in a loop has filled ctest's memory with its messages. Now it ends with the first one.
    GTEST_THROW_ON_FAILURE=1 run_tests "$(header "$patch" Tests)" >> "$log/$name.log" 2>&1 || status=$?
    mapfile -t failed < <(failed_tests "$log/$name.log")
  fi
  if [ ${#failed[@]} -gt 0 ]; then
    caught=$((caught + 1))
    say "caught  $name: $(header "$patch" What) [by ${failed[0]}, ${#failed[@]} in all]"
  elif [ "$status" = 0 ]; then
    say "MISSED  $name: $(header "$patch" What)"
  else
    tail -n 5 "$log/$name.log"
    say "MISSED  $name: no test failed, but they did not run to their end either (ctest: $status), which proves nothing"
  fi
  revert "$patch"
done

say "$planted planted, $caught caught"
[ "$planted" -eq "$caught" ]
