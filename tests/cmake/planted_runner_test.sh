#!/usr/bin/env bash
# tests/planted/run.sh on a small tree of its own: a bug counts as caught only when a test ran and failed.
#   planted_runner_test.sh PATH-OF-run.sh
set -euo pipefail
runner=$1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir -p "$scratch/tests/planted"
cp "$runner" "$scratch/tests/planted/run.sh"
cd "$scratch"

# The product is sum.txt; "compiling" copies it, and a test is a shell script that looks at the copy.
cat > CMakeLists.txt << 'END'
cmake_minimum_required(VERSION 3.25)
project(planted NONE)
enable_testing()
add_custom_target(sum COMMAND sh ${CMAKE_SOURCE_DIR}/compile.sh ${CMAKE_BINARY_DIR})
add_test(NAME SumTest.IsFour COMMAND ${CMAKE_BINARY_DIR}/program four)
add_test(NAME SumTest.EndsSoon COMMAND ${CMAKE_BINARY_DIR}/program soon)
add_test(NAME OtherTest.Passes COMMAND ${CMAKE_COMMAND} -E true)
END
cat > CMakePresets.json << 'END'
{"version": 6,
 "configurePresets": [{"name": "release", "generator": "Ninja", "binaryDir": "${sourceDir}/build/release"}],
 "buildPresets": [{"name": "release", "configurePreset": "release"}]}
END
cat > compile.sh << 'END'
cd "$(dirname "$0")"
rm -f "$1/program"
grep -q '^sum=' sum.txt || { echo 'sum.txt:1: error: no sum'; exit 1; }
grep -q '^program=no' sum.txt && exit 0
{ echo '#!/bin/sh'; cat sum.txt; echo '[ "$sum" = 4 ]'; } > "$1/program"
chmod +x "$1/program"
END
printf 'sum=4\nprogram=yes\n' > sum.txt

# plant NAME TESTS OLD NEW: a patch that replaces the line OLD of sum.txt by NEW
plant() {
  printf 'What: %s\nBuild: sum\nTests: %s\n\n' "$1" "$2" > "tests/planted/$1.patch"
  awk -v old="$3" -v new="$4" '{ print $0 == old ? new : $0 }' sum.txt > new.txt
  diff -u --label a/sum.txt --label b/sum.txt sum.txt new.txt >> "tests/planted/$1.patch" || true
  rm new.txt
}
plant wrong-sum SumTest sum=4 sum=5
plant crashes SumTest sum=4 'sum=4; kill -SEGV $$'
plant harmless SumTest program=yes 'program=yes # as before'
plant asks-another OtherTest sum=4 sum=5
plant matches-nothing NoSuchTest sum=4 sum=5
plant matches-in-part 'SumTest|NoSuchTest' sum=4 sum=5
plant does-not-compile SumTest sum=4 'no sum'
plant has-no-program SumTest program=yes program=no
plant does-not-apply SumTest sum=4 sum=5
sed -i 's/^-sum=4/-sum=3/' tests/planted/does-not-apply.patch

code=0
out=$(tests/planted/run.sh 2>&1) || code=$?
failures=0
# expect LINE: a regular expression that some line of the output matches
expect() {
  grep -qE -- "$1" <<< "$out" || { echo "FAILED: no line matches: $1" >&2; failures=$((failures + 1)); }
}
expect '^caught  wrong-sum: .*\[by SumTest\.(IsFour|EndsSoon), 2 in all\]$'
expect '^caught  crashes: '
expect '^MISSED  harmless: harmless$'
expect '^MISSED  asks-another: asks-another$'
expect "^MISSED  matches-nothing: no test matches 'NoSuchTest'"
expect "^MISSED  matches-in-part: no test matches 'NoSuchTest'"
expect '^MISSED  does-not-compile: it does not compile'
expect '^MISSED  has-no-program: no test failed, but'
expect '^MISSED  does-not-apply: the patch does not apply'
expect '^9 planted, 2 caught$'
[ "$code" = 1 ] || { echo "FAILED: exit code $code with bugs that were missed" >&2; failures=$((failures + 1)); }

code=0
out=$(tests/planted/run.sh wrong-sum crashes 2>&1) || code=$?
expect '^2 planted, 2 caught$'
[ "$code" = 0 ] || { echo "FAILED: exit code $code with every bug caught" >&2; failures=$((failures + 1)); }

sed -i 's/^sum=4/sum=5/' sum.txt
code=0
out=$(tests/planted/run.sh wrong-sum 2>&1) || code=$?
expect '^run.sh: without any bug, the tests do not pass'
[ "$code" = 1 ] || { echo "FAILED: exit code $code where the tests fail by themselves" >&2; failures=$((failures + 1)); }

[ "$failures" = 0 ] || { printf '%s\n' "$out" >&2; exit 1; }
echo 'planted_runner_test: passed'
