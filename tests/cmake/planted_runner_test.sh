#!/usr/bin/env bash
# tests/planted/run.sh on a small tree of its own: a bug counts as caught only when a test ran and failed.
#   planted_runner_test.sh PATH-OF-run.sh
set -euo pipefail
runner=$1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir -p "$scratch/tests/planted"
cp "$runner" "$(dirname "$runner")/python.sh" "$scratch/tests/planted/"
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

# The Python package is sum.py, and what stands for pytest looks at it: 'sum' passes while it says 4, 'other' always, 'ends' crashes if it
# says 6, and no test has another name.
mkdir -p client/python/kvstore client/python/tests build/python/site/kvstore
echo 'sum = 4' > client/python/kvstore/sum.py
touch client/python/tests/test_sum.py build/python/site/kvstore/_kvstore.so
cat > python << 'END'
#!/bin/sh
while [ "$1" != -k ]; do shift; done
case $2 in
  *sum*) ! grep -q 5 "$PYTHONPATH/kvstore/sum.py" || { echo 'FAILED test_sum.py::test_sum_is_four - assert'; exit 1; } ;;
  *ends*) ! grep -q 6 "$PYTHONPATH/kvstore/sum.py" || exit 2 ;;
  *other*) ;;
  *) exit 5 ;;
esac
[ -f "$PYTHONPATH/kvstore/_kvstore.so" ] && echo '1 passed'
END
chmod +x python
export KV_PYTHON=$PWD/python
unset KV_PYTHON_SITE

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

# plant_python NAME EXPRESSION NEW
plant_python() {
  printf 'What: %s\nPython: %s\n\n--- a/%s\n+++ b/%s\n@@ -1 +1 @@\n-sum = 4\n+sum = %s\n' "$1" "$2" client/python/kvstore/sum.py \
    client/python/kvstore/sum.py "$3" > "tests/planted/$1.patch"
}
plant_python python-wrong-sum sum 5
plant_python python-harmless sum '2 + 2'
plant_python python-asks-another other 5
plant_python python-does-not-start ends 6
plant_python python-matches-nothing nothing 5
plant_python python-does-not-apply sum 5
sed -i 's/^-sum = 4/-sum = 3/' tests/planted/python-does-not-apply.patch

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
expect '^caught  python-wrong-sum: python-wrong-sum \[by test_sum_is_four\]$'
expect '^MISSED  python-harmless: python-harmless$'
expect '^MISSED  python-asks-another: python-asks-another$'
expect '^MISSED  python-does-not-start: the tests did not run to their end \(pytest: 2\)'
expect "^MISSED  python-matches-nothing: no test matches 'nothing'"
expect '^MISSED  python-does-not-apply: the patch does not apply'
expect '^15 planted, 3 caught$'
[ "$code" = 1 ] || { echo "FAILED: exit code $code with bugs that were missed" >&2; failures=$((failures + 1)); }

code=0
out=$(tests/planted/run.sh wrong-sum crashes 2>&1) || code=$?
expect '^2 planted, 2 caught$'
[ "$code" = 0 ] || { echo "FAILED: exit code $code with every bug caught" >&2; failures=$((failures + 1)); }

code=0
out=$(tests/planted/run.sh python-wrong-sum 2>&1) || code=$?
expect '^1 planted, 1 caught$'
grep -q '^sound:' <<< "$out" && { echo 'FAILED: it builds where only Python has bugs' >&2; failures=$((failures + 1)); }
[ "$code" = 0 ] || { echo "FAILED: exit code $code with the bug of Python caught" >&2; failures=$((failures + 1)); }

code=0
out=$(KV_PYTHON_SITE=$PWD/nowhere tests/planted/run.sh python-wrong-sum wrong-sum 2>&1) || code=$?
expect '^MISSED  python-wrong-sum: there is no package in .*/nowhere'
expect '^2 planted, 1 caught$'
[ "$code" = 1 ] || { echo "FAILED: exit code $code without a package" >&2; failures=$((failures + 1)); }

echo 'sum = 5' > client/python/kvstore/sum.py
code=0
out=$(tests/planted/run.sh python-wrong-sum 2>&1) || code=$?
expect '^MISSED  python-wrong-sum: without any bug, the tests do not pass'
[ "$code" = 1 ] || { echo "FAILED: exit code $code where the tests of Python fail by themselves" >&2; failures=$((failures + 1)); }

sed -i 's/^sum=4/sum=5/' sum.txt
code=0
out=$(tests/planted/run.sh wrong-sum 2>&1) || code=$?
expect '^run.sh: without any bug, the tests do not pass'
[ "$code" = 1 ] || { echo "FAILED: exit code $code where the tests fail by themselves" >&2; failures=$((failures + 1)); }

[ "$failures" = 0 ] || { printf '%s\n' "$out" >&2; exit 1; }
echo 'planted_runner_test: passed'
