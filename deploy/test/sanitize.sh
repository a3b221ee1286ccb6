# shellcheck shell=bash disable=SC2154,SC2034  # names of deploy/test.sh and release.sh
# deploy/test/sanitize.sh: Clang, its sanitizers and its fuzzer. Sourced by deploy/test.sh.

symbolizer=$(command -v llvm-symbolizer-16 || command -v llvm-symbolizer || true)
common=${symbolizer:+external_symbolizer_path=$symbolizer:}
export ASAN_OPTIONS=${common}detect_stack_use_after_return=1:strict_string_checks=1:detect_leaks=1
export UBSAN_OPTIONS=${common}print_stacktrace=1
# Some tests fork children that start threads; ThreadSanitizer ends such a child unless it is told not to.
export TSAN_OPTIONS=${common}second_deadlock_stack=1:halt_on_error=1:die_after_fork=0:suppressions=$root/tests/tsan.supp

# sanitized STEP PRESET TARGET [OPTION...]: builds that target, and runs ctest with the options.
# Random tests get fewer rounds under a sanitizer, where each takes ten times as long. The release build runs 1,000 seeds of the
# simulation, changes 100 bytes in each kind of file of the disk tier and lets the attacker of verbs try 1,000,000 times.
sanitized() {
  local step=$1 preset=$2 target=$3 launcher=()
  shift 3
  begin "$step: build"
  build "$preset" "$target" || return 0
  begin "$step: tests"
  # ThreadSanitizer maps its memory at fixed addresses, which some kernels' address randomisation takes.
  if [ "$preset" = tsan ] && setarch -R true 2> /dev/null; then launcher=(setarch -R); fi
  KV_SIM_SEEDS=200 KV_CORRUPT_SAMPLES=25 KV_VERBS_ATTACKS=100000 run_tests "$step" "$preset" "$@"
}

# The sanitizers' builds take hours, so they run seldom: without this, a commit that Clang refuses would stop them.
step_clang() {
  begin "clang: build"
  build clang all && count clang 1 0 0
}

step_asan() { sanitized asan asan tests; }
step_tsan() { sanitized tsan tsan tests; }

# Each sanitizer on the programs that it is most likely to find something in: cmake/Testing.cmake explains the labels.
step_sanitize() {
  sanitized 'sanitize asan' asan parses -L parses
  if cut 'sanitize tsan'; then return; fi
  sanitized 'sanitize tsan' tsan threads -L threads
}

# fuzz_one PROGRAM CORPUS: new inputs go to a scratch corpus, inputs that break the program to build/fuzz/artifacts
fuzz_one() {
  local program=$1 corpus=$2 name seconds=${KV_FUZZ_SECONDS:-10}
  name=$(basename "$program")
  mkdir -p "build/fuzz/corpus/$name" build/fuzz/artifacts
  if "$program" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
    -artifact_prefix="build/fuzz/artifacts/$name-" "build/fuzz/corpus/$name" "$corpus" > "$logs/fuzz-$name.log" 2>&1; then
    printf '   %s: %s runs, %s inputs kept\n' "$name" "$(awk '/number_of_executed_units/{print $2}' "$logs/fuzz-$name.log")" \
      "$(find "build/fuzz/corpus/$name" -type f | wc -l)"
  else
    tail -n 60 "$logs/fuzz-$name.log"
    return 1
  fi
}

step_fuzz() {
  begin "fuzz: build"
  build asan fuzzers || return 0
  begin "fuzz: ${KV_FUZZ_SECONDS:-10} s for each decoder"
  local program corpus name good=0 bad=0 pids=() started=()
  while read -r program corpus; do
    [ -n "$program" ] || continue
    name=$(basename "$program")
    together fuzz "$name" "$logs/fuzz-$name.log" fuzz_one "$program" "$corpus"
  done < build/asan/fuzz_targets.txt
  together_end fuzz
  if [ $((good + bad)) = 0 ]; then
    bad=1
    fail fuzz 'no fuzz target was built' "$logs/asan-build.log"
  fi
  count fuzz "$good" "$bad" 0
}
