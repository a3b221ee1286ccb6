# shellcheck shell=bash disable=SC2154  # deploy/test.sh has the other names
# deploy/test/release.sh: the release build, and how any step builds, checks and runs ctest. Sourced by deploy/test.sh.

# The presets name Debian 12's Clang 16; elsewhere take the default Clang.
compilers=()
if ! command -v clang++-16 > /dev/null; then
  compilers=(-DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++)
fi

# check NAME COMMAND...: one thing that passes or fails
check() {
  local name=$1 log=$logs/${1// /-}.log
  shift
  if "$@" > "$log" 2>&1; then
    count "$name" 1 0 0
  else
    tail -n 60 "$log"
    fail "$name" '' "$log"
    count "$name" 0 1 0
  fi
}

# build PRESET TARGET...: configures and builds; on failure shows the end of the log and counts one failure
build() {
  local preset=$1 log=$logs/$1-build.log
  shift
  local arguments=() limit=0  # of timeout: none
  if [ "$preset" = release ]; then
    arguments=(-D KV_CUDA=ON)  # the quickstart may have turned it off
    [ -z "${KV_CUDA_ARCHITECTURES:-}" ] || arguments+=(-D "KV_CUDA_ARCHITECTURES=$KV_CUDA_ARCHITECTURES")
  else
    arguments=("${compilers[@]}") limit=$(left)
  fi
  if cmake --preset "$preset" "${arguments[@]}" > "$log" 2>&1 &&
    timeout "$limit" cmake --build --preset "$preset" -j "$jobs" --target "$@" >> "$log" 2>&1; then
    printf '   built in %d s\n' $((SECONDS - step_began))
    return 0
  fi
  if [ "$limit" != 0 ] && cut "$preset build"; then return 1; fi
  grep -A 15 -E 'error:|FAILED|CMake Error' "$log" | head -n 80 || tail -n 40 "$log" || true
  fail "$preset build" "$*" "$log"
  count "$preset build" 0 1 0
  return 1
}

# run_tests STEP PRESET [OPTION...]: runs ctest with further options, prints failures in full, counts. ${launcher[@]} runs it
launcher=()
run_tests() {
  local step=$1 preset=$2 log=$logs/${1// /-}-tests.log junit=$logs/${1// /-}-tests.xml
  shift 2
  rm -f "$junit"
  timeout "$(left)" "${launcher[@]}" ctest --test-dir "build/$preset" -j "$jobs" --no-tests=error --output-on-failure \
    --output-junit "$junit" "$@" > "$log" 2>&1 || grep -vE '^ *(Start +[0-9]+:|[0-9]+/[0-9]+ Test +#.* Passed )' "$log" | tail -n 400 || true
  if take_junit "$step" "$junit" "$log"; then return; fi
  if is_over; then
    run_in_part "$step" "$log"
    return
  fi
  tail -n 20 "$log"
  fail "$step" 'ctest did not get to its end' "$log"
  count "$step" 0 1 0
}

# run_in_part STEP LOG: counts a run of ctest that the time limit has stopped, by the lines of its log
run_in_part() {
  local step=$1 log=$2 good=0 bad=0 skip=0 total=0 line
  while IFS= read -r line; do
    total=${line#*/} total=${total%% *}
    case $line in
      *'***Skipped'* | *'(Disabled)'*) skip=$((skip + 1)) ;;
      *' Passed '*) good=$((good + 1)) ;;
      *)
        bad=$((bad + 1)) line=${line#*#*: }
        fail "$step" "${line%% *}" "$log"
        ;;
    esac
  done < <(grep -E '^ *[0-9]+/[0-9]+ Test +#' "$log")
  skip "$step" "$((total - good - bad - skip)) tests" "left out after $minutes minutes (KV_TEST_MINUTES)" $((total - good - bad - skip))
  count "$step" "$good" "$bad" $((total - good - bad))
}

# together STEP NAME LOG COMMAND...: starts the command; $jobs of them run at once. Into the caller's good, bad, pids and started, which are
# 0, 0 and empty at first
together() {
  [ ${#pids[@]} -lt "$jobs" ] || reap "$1"
  started+=("$2"$'\t'"$3")
  "${@:4}" &
  pids+=($!)
}

# together_end STEP: waits for those that are still running
together_end() {
  while [ ${#pids[@]} -gt 0 ]; do reap "$1"; done
}

reap() {
  if wait "${pids[0]}"; then
    good=$((good + 1))
  else
    bad=$((bad + 1))
    fail "$1" "${started[0]%$'\t'*}" "${started[0]#*$'\t'}"
  fi
  pids=("${pids[@]:1}") started=("${started[@]:1}")
}

step_release() {
  begin "release: build"
  build release tests all || return 0
  begin "release: tests"
  run_tests release release
  begin "headers compile alone"
  cut headers || check headers cmake --build --preset release -j "$jobs" --target all_verify_interface_header_sets
  begin "format"
  if command -v clang-format-14 > /dev/null; then
    check format bash -c "find base index store transport gpu client tests cmake -name '*.h' -o -name '*.cc' -o -name '*.c' 2> /dev/null |
      xargs clang-format-14 --dry-run -Werror"
  else
    skip_step format 'clang-format 14 is not installed'
  fi
}
