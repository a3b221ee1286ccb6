#!/usr/bin/env bash
# The last lines of deploy/test.sh, from made-up JUnit files: the summary, skips by reason, then every failure by name.
#   report_test.sh SOURCE-DIRECTORY
set -euo pipefail
# shellcheck disable=SC2034  # of report.sh
root=$1 logs=$(mktemp -d) step_began=0
trap 'rm -rf "$logs"' EXIT
problem() { printf 'FAILED: %s\n' "$*" >&2; exit 1; }
# shellcheck source=deploy/test/report.sh
source "$root/deploy/test/report.sh"

# case_of NAME STATUS ELEMENTS: a test as ctest writes it
case_of() { printf '<testcase name="%s" classname="%s" time="1" status="%s">%s</testcase>\n' "$1" "$1" "$2" "$3"; }
ctest_file() {
  local i
  echo '<?xml version="1.0" encoding="UTF-8"?><testsuite name="(empty)">'
  case_of SumTest.IsFour run '<system-out>fine: Skipped
no reason, for it passed</system-out>'
  case_of 'Sums/SumTest.IsFive/{&quot;a&quot;}  # GetParam() = {&quot;a&quot;}' fail '<failure message="Failed"/><system-out>sum.cc:7: Failure
Expected: 4
  Actual: 5
[  FAILED  ] Sums</system-out>'
  for i in $(seq 500); do
    case_of "Skips/SkipTest.Of500/$i" notrun '<skipped message="SKIP_REGULAR_EXPRESSION_MATCHED"/><system-out>a.cc:1: Skipped
no such device
[  SKIPPED ] Skips</system-out>'
  done
  case_of SkipTest.Alone disabled ''
  echo '</testsuite>'
}
ctest_file > "$logs/ctest.xml"
cat > "$logs/pytest.xml" << 'END'
<testsuites><testsuite name="pytest" tests="4" failures="1" errors="1" skipped="1">
<testcase classname="tests.test_sum" name="test_four" time="1"/>
<testcase classname="tests.test_sum.TestSums" name="test_five[a b]" time="1"><failure message="assert 4 == 5">...
test_sum.py:9: AssertionError</failure></testcase>
<testcase classname="" name="tests.test_broken" time="0"><error message="collection failure">...</error></testcase>
<testcase classname="tests.test_sum" name="test_six" time="0"><skipped type="pytest.skip" message="no such device">...</skipped></testcase>
</testsuite></testsuites>
END

run() {
  take_junit release "$logs/ctest.xml" "$logs/release-tests.log"
  take_junit python "$logs/pytest.xml" "$logs/python.log"
  if take_junit page "$logs/absent.xml" "$logs/page.log"; then problem 'a file that is not there was counted'; fi
  fail format '' "$logs/format.log"
  count format 0 1 0
  count cuda 2 3 0 "$logs/cuda.log"
  skip_step rdma 'there is no QEMU'
  report
}
status=0
said=$(run) || status=$?
[ "$status" = 1 ] || problem "status $status with failures"
# Logs outside the tree have their full path: here a scratch folder's.
last=$(sed -n '/^== summary/,$p' <<< "${said//"$logs"/logs}")
wanted='   release                    1 passed, 1 failed, 501 skipped
   python                     1 passed, 2 failed, 1 skipped
   format                     0 passed, 1 failed, 0 skipped
   cuda                       2 passed, 3 failed, 0 skipped
   rdma                       0 passed, 0 failed, 1 skipped

Skipped, and why (each by name: logs/skipped.txt):
     501  no such device: release: Skips/SkipTest.Of500/1, release: Skips/SkipTest.Of500/2, ...
       1  disabled: release: SkipTest.Alone
       1  there is no QEMU: rdma

FAILED:
   release: Sums/SumTest.IsFive/{"a"}  [logs/release-tests.log]
      sum.cc:7: Expected: 4 Actual: 5
   python: test_sum.TestSums::test_five[a b]  [logs/python.log]
      test_sum.py:9: AssertionError: assert 4 == 5
   python: tests.test_broken  [logs/python.log]
      collection failure
   format  [logs/format.log]
   cuda: 3 without a name  [logs/cuda.log]

4 passed, 7 failed, 503 skipped'
[ "$(tail -n +2 <<< "$last")" = "$wanted" ] || problem "the report is not as it should be: $(diff <(tail -n +2 <<< "$last") - <<< "$wanted")"

# However many fail, the counts stay in sight.
many() {
  fails planted "$logs/planted.log" < <(seq -f 'bug-%g: it is missed' 130)
  count planted 0 130 0
  report
}
said=$(many) || true
[ "$(grep -c ': bug-' <<< "$said")" = 100 ] || problem "not 100 names of 130"
[ "$(tail -n 3 <<< "$said")" = "   and 30 more

0 passed, 130 failed, 0 skipped" ] || problem "it ends with: $(tail -n 3 <<< "$said")"

# Nothing failed, and nothing was tested at all.
said=$(count release 1 0 0 && report) || problem 'a run without failures fails'
if grep -q FAILED <<< "$said"; then problem "it lists failures: $said"; fi
if said=$(skip_step release 'no time' && report); then problem 'a run that tested nothing succeeds'; fi
echo 'report_test: passed'
