# shellcheck shell=bash disable=SC2154  # the script that sources this has the other names
# deploy/test/report.sh: what a run counts, and its last lines. Sourced by deploy/test.sh, which says where $root and $logs are, and by
# tests/cmake/report_test.sh.
#
# Each step calls `fail` for each failure and `skip` for each group of skips, then `count` once. The end of the output names all failures,
# since CI shows the last 12 KB alone.

passed=0 failed=0 skipped=0
summary=() failures=() skips=()
named=0  # failures that are named and not counted yet

begin() {
  step_began=$SECONDS
  printf '\n== %s\n' "$*"
}

# count STEP PASSED FAILED SKIPPED [LOG]: adds one line to the summary. Failures that `fail` has not named get one line for all of them
count() {
  passed=$((passed + $2)) failed=$((failed + $3)) skipped=$((skipped + $4))
  summary+=("$(printf '%-22s %5d passed, %d failed, %d skipped' "$1" "$2" "$3" "$4")")
  if [ "$3" -gt 0 ]; then
    [ "$named" -ge "$3" ] || fail "$1" "$(($3 - named)) without a name" "${5:-$logs}"
    named=0
  fi
  printf '   %s: %d passed, %d failed, %d skipped (%d s)\n' "$1" "$2" "$3" "$4" $((SECONDS - step_began))
}

# fail STEP NAME LOG [MESSAGE]: one failure of the step. NAME may be empty: it is the step itself. The first ten show their messages
fail() {
  local name=$1${2:+: ${2:0:160}} message=${4:-}
  [ ${#failures[@]} -lt 10 ] || message=''
  failures+=("$name  [${3#"$root/"}]${message:+$'\n'"      $message"}")
  named=$((named + 1))
}

# fails STEP LOG: a failure for each line of the input, which is its name
fails() {
  local line
  while IFS= read -r line; do fail "$1" "$line" "$2"; done
}

# skip STEP NAME REASON [COUNT]: COUNT skips, or one, of the step. NAME may be empty: it is the step itself
skip() { skips+=("${4:-1}"$'\t'"$1${2:+: $2}"$'\t'"$3"); }

# skip_step STEP REASON: the whole step, counted as one
skip_step() {
  skip "$1" '' "$2"
  count "$1" 0 0 1
}

# take_junit STEP FILE LOG: names and counts the tests of a JUnit file; without a readable one fails and counts nothing
take_junit() {
  local step=$1 junit=$2 log=$3 kind name reason numbers=''
  while IFS=$'\t' read -r kind name reason; do
    case $kind in
      counts*) numbers=${kind#counts } ;;
      fail) fail "$step" "$name" "$log" "$reason" ;;
      skip) skip "$step" "$name" "$reason" ;;
    esac
  done < <([ ! -s "$junit" ] || python3 "$root/deploy/test/junit.py" "$junit")
  [ -n "$numbers" ] || return 1
  # shellcheck disable=SC2086  # three words
  count "$step" $numbers "$log"
}

# skips_by_reason: a line for each reason, in the order of the steps: how many, why, the first two names. All names: skipped.txt
skips_by_reason() {
  rm -f "$logs/skipped.txt"
  [ ${#skips[@]} -gt 0 ] || return 0
  printf '%s\n' "${skips[@]}" > "$logs/skipped.txt"
  printf '\nSkipped, and why (each by name: %s):\n' "${logs#"$root/"}/skipped.txt"
  awk -F '\t' -v most=60 '
    !($3 in count) { order[++reasons] = $3 }
    { count[$3] += $1; if (++lines[$3] <= 2) names[$3] = names[$3] (lines[$3] > 1 ? ", " : "") substr($2, 1, 90) }
    END {
      for (i = 1; i <= reasons && i <= most; ++i) {
        why = order[i]
        printf "   %5d  %s: %s%s\n", count[why], substr(why, 1, 140), names[why], (lines[why] > 2 ? ", ..." : "")
      }
      if (reasons > most) printf "          and %d more reasons\n", reasons - most
    }' "$logs/skipped.txt"
}

# report: the last lines of the output. True only if something passed and nothing failed
report() {
  local most=100
  printf '\n== summary (%d min)\n' $((SECONDS / 60))
  printf '   %s\n' "${summary[@]}"
  skips_by_reason
  if [ ${#failures[@]} -gt 0 ]; then
    printf '\nFAILED:\n'
    printf '   %s\n' "${failures[@]:0:most}"
    [ ${#failures[@]} -le $most ] || printf '   and %d more\n' $((${#failures[@]} - most))
  fi
  printf '\n%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
  [ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
}
