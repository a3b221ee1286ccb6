#!/usr/bin/env bash
# Installs what is missing, builds, runs the tests and counts them. Without arguments: everything that CI runs.
#
#   deploy/test.sh               most of the below, but only a tenth of the planted bugs, clients and nodes over one of RDMA's two networks,
#                                and no more than fits into 75 minutes: with each commit something else is left out or comes last
#   deploy/test.sh --quick       release build: all tests, include rules, headers that compile alone, format
#   deploy/test.sh --asan        the tests under AddressSanitizer and UndefinedBehaviorSanitizer (Clang)
#   deploy/test.sh --tsan        the tests under ThreadSanitizer (Clang)
#   deploy/test.sh --fuzz        every decoder under libFuzzer, 10 s each (KV_FUZZ_SECONDS)
#   deploy/test.sh --planted     plants all bugs one by one: the tests must catch each
#   deploy/test.sh --rdma        the tests of verbs, and kvstorectl doctor, on Soft-RoCE devices in a virtual machine (QEMU; skipped
#                                where there is none)
#   deploy/test.sh --cuda        the tests of the compiled CUDA kernels, of the Python package and of the connector for vLLM with pages on a
#                                GPU, in a functional simulator of one (skipped without nvcc, and
#                                unless KV_CUDA_SIMULATOR names the simulator's folder)
#   deploy/test.sh --python      builds the Python package into an environment of its own and runs its tests, mypy and ruff (skipped where
#                                pip finds no packages). KV_PYTHON names the interpreter; if it has nanobind, scikit-build-core and
#                                pytest it is used as it is, with torch and transformers if it has those
#   deploy/test.sh --python-asan the same tests with AddressSanitizer and UndefinedBehaviorSanitizer in the package's extension (Clang; skipped
#                                where pip finds no packages); in no other run
#   deploy/test.sh --engines     real engines with the package: vLLM, SGLang and LMCache on the CPU, each in an environment of its own of
#                                6 to 10 GB (Python 3.11; skipped where pip finds no packages); then the bugs of tests/planted/engines.
#                                KV_ENGINES_PYTHON names an interpreter that has what client/python/tests/engines/requirements.txt
#                                lists, KV_SGLANG_PYTHON and KV_LMCACHE_PYTHON those of requirements-sglang.txt and -lmcache.txt
#   deploy/test.sh --observe     alerts, recording rules and dashboards: Prometheus and Alertmanager on nodes under load, and
#                                deploy/observe.sh (skipped where they cannot be installed). KVSTORE_TRACES names a folder with a trace
#   deploy/test.sh --page        the status page in a real Chromium, on nodes with 0, 10 and a million blocks (skipped where Chromium cannot
#                                be installed). Pictures of it: build/test-logs/page/
#   deploy/test.sh --docs        the commands of README.md and docs/*.md, run as they stand, each page in namespaces of its own (skipped where
#                                there are none). KV_BUILD names another build folder than build/release
#   deploy/test.sh --kubernetes  deploy/kubernetes: rendered, and held against what kvstore-node has (skipped without kubectl or kustomize)
#   deploy/test.sh --packages    Debian packages for Debian 12 and 13, each built there and installed in a bare one: docs/install.md line by
#                                line, clients in C, C++ and Python, upgrade, removal, purge, the container file (debootstrap; half an
#                                hour; in no other run). --packages12 and --packages13 do one of them
#   deploy/test.sh --debian13    the README's commands, an install and all release tests in a bare Debian 13 (debootstrap; skipped
#                                where there is none), and spill directories from one Debian to the other; --debian12 likewise
#   deploy/test.sh --debian13-python   the README's `pip install client/python` in a bare Debian 13, and its ten lines (skipped where
#                                pip finds no packages); in no other run
#   deploy/test.sh --all         all steps above but --engines, --packages, --python-asan, --debian12 and --debian13-python, with all
#                                planted bugs; flags can be combined
#
# KV_CUDA_ARCHITECTURES="80;120": the CUDA module of the release build has machine code for these alone, not for all six: a minute of
# compilation each.
# KV_TEST_MINUTES=N: after N minutes, what is left is counted as skipped. Without arguments N is 75, else there is no limit. The
# build of the release step has no limit in any case: without it nothing would have been tested.
#
# Logs and JUnit files: build/test-logs/. Exits 0 only if nothing failed. The last line counts it all.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD

# A number that another commit has another one of
commit_number() { printf '%d' "0x$(git rev-parse --short=6 HEAD 2> /dev/null || echo 0)"; }

steps=()
for argument in "$@"; do
  case $argument in
    --quick) steps+=(release) ;;
    --asan | --tsan | --fuzz | --planted | --rdma | --cuda | --python | --observe | --page | --docs | --engines | --debian12 | --debian13) steps+=("${argument#--}") ;;
    --kubernetes | --packages12 | --packages13) steps+=("${argument#--}") ;;
    --packages) steps+=(packages12 packages13) ;;
    --debian13-python) steps+=(debian13_python) ;;
    --python-asan) steps+=(python_asan) ;;
    --all) steps=(release docs python observe page kubernetes cuda rdma asan fuzz tsan debian13 planted) && break ;;
    -h | --help) sed -n '2,47s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "test.sh: unknown argument '$argument' (see --help)" >&2; exit 2 ;;
  esac
done
minutes=${KV_TEST_MINUTES:-}
if [ ${#steps[@]} -eq 0 ]; then
  steps=(release docs python observe page kubernetes cuda rdma_half)
  # On two cores the time does not suffice for all of these. Each commit begins with another one, so that each has its turn.
  rest=("asan fuzz" tsan debian13_store planted_tenth)
  first=$(($(commit_number) / 3 % ${#rest[@]}))
  # shellcheck disable=SC2206  # words
  steps+=(${rest[@]:first} ${rest[@]:0:first})
  minutes=${minutes:-75}
fi
case $minutes in
  0* | *[!0-9]*) echo "test.sh: KV_TEST_MINUTES is '$minutes', allowed are whole minutes, 1 or more" >&2; exit 2 ;;
esac

"$root/deploy/install-dependencies.sh" --test

jobs=$(nproc)
logs=$root/build/test-logs
mkdir -p "$logs"
# Without etcd the tests of clusters are skipped, and counted as that.
deploy/install-dependencies.sh --cluster > "$logs/etcd-install.log" 2>&1 || tail -n 5 "$logs/etcd-install.log"
# Paths relative to the tree, so that a second clone finds in the compiler cache what the first one compiled.
export CCACHE_BASEDIR=$root CCACHE_NOHASHDIR=1 GTEST_COLOR=no CTEST_OUTPUT_ON_FAILURE=1

# The presets name Debian 12's Clang 16; elsewhere take the default Clang.
compilers=()
if ! command -v clang++-16 > /dev/null; then
  compilers=(-DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++)
fi
symbolizer=$(command -v llvm-symbolizer-16 || command -v llvm-symbolizer || true)
common=${symbolizer:+external_symbolizer_path=$symbolizer:}
export ASAN_OPTIONS=${common}detect_stack_use_after_return=1:strict_string_checks=1:detect_leaks=1
export UBSAN_OPTIONS=${common}print_stacktrace=1
# Some tests fork children that start threads; ThreadSanitizer ends such a child unless it is told not to.
export TSAN_OPTIONS=${common}second_deadlock_stack=1:halt_on_error=1:die_after_fork=0:suppressions=$root/tests/tsan.supp

passed=0 failed=0 skipped=0
summary=() skips=()

# count STEP PASSED FAILED SKIPPED: adds one line to the summary
count() {
  passed=$((passed + $2)) failed=$((failed + $3)) skipped=$((skipped + $4))
  summary+=("$(printf '%-22s %5d passed, %d failed, %d skipped' "$1" "$2" "$3" "$4")")
  printf '   %s: %d passed, %d failed, %d skipped (%d s)\n' "$1" "$2" "$3" "$4" $((SECONDS - step_began))
}

begin() {
  step_began=$SECONDS
  printf '\n== %s\n' "$*"
}

# left [MOST]: the seconds until the time limit, MOST at most, and never below one
left() {
  local seconds=$((${minutes:-10000} * 60 - SECONDS)) most=${1:-1000000}
  seconds=$((seconds < most ? seconds : most))
  echo $((seconds > 1 ? seconds : 1))
}

is_over() { [ "$(left)" = 1 ]; }

# cut NAME: if the time limit is reached, counts NAME as skipped
cut() {
  is_over || return 1
  skips+=("$1: left out after $minutes minutes (KV_TEST_MINUTES)")
  count "$1" 0 0 1
}

# check NAME COMMAND...: one thing that passes or fails
check() {
  local name=$1 log=$logs/${1// /-}.log
  shift
  if "$@" > "$log" 2>&1; then
    count "$name" 1 0 0
  else
    tail -n 60 "$log"
    count "$name" 0 1 0
  fi
}

# build PRESET TARGET...: configures and builds; on failure shows the end of the log and counts one failure
build() {
  local preset=$1 log=$logs/$1-build.log
  shift
  local arguments=() limit=0  # of timeout: none
  if [ "$preset" = release ]; then
    [ -z "${KV_CUDA_ARCHITECTURES:-}" ] || arguments=(-D "KV_CUDA_ARCHITECTURES=$KV_CUDA_ARCHITECTURES")
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
  count "$preset build" 0 1 0
  return 1
}

# run_tests PRESET [PREFIX...]: runs ctest, prints failures in full, counts
run_tests() {
  local preset=$1 log=$logs/$1-tests.log junit=$logs/$1-tests.xml
  shift
  rm -f "$junit"
  timeout "$(left)" "$@" ctest --test-dir "build/$preset" -j "$jobs" --no-tests=error --output-on-failure --output-junit "$junit" \
    > "$log" 2>&1 || grep -vE '^ *(Start +[0-9]+:|[0-9]+/[0-9]+ Test +#.* Passed )' "$log" | tail -n 400 || true
  if [ ! -s "$junit" ]; then
    if is_over; then  # stopped on the way: what the log has is what ran
      local good bad skip total
      read -r good bad skip total < <(awk '
        $2 == "Test" && $3 ~ /^#/ { split($1, at, "/"); total = at[2]; if (/\*\*\*Skipped|\(Disabled\)/) ++skip; else if (/ Passed /) ++good; else ++bad }
        END { print good + 0, bad + 0, skip + 0, total + 0 }' "$log")
      skips+=("$preset: $((total - good - bad - skip)) tests left out after $minutes minutes (KV_TEST_MINUTES)")
      count "$preset" "$good" "$bad" $((total - good - bad))
      return
    fi
    tail -n 20 "$log"
    count "$preset" 0 1 0
    return
  fi
  local numbers
  numbers=$(awk '
    /<testcase / { ++total; if (/status="fail"/) ++bad; else if (/status="(notrun|disabled)"/) ++skip; else ++good }
    END { printf "%d %d %d", good, bad, skip }' "$junit")
  # shellcheck disable=SC2086
  count "$preset" $numbers
  while IFS= read -r line; do skips+=("$preset: $line"); done < <(awk '
    /<testcase / { name = $0; sub(/.*<testcase name="/, "", name); sub(/".*/, "", name); why = ""; is_skip = /status="(notrun|disabled)"/ }
    is_skip && is_reason && why == "" { why = $0; is_reason = 0 }
    /: Skipped$/ { is_reason = 1; next }
    /<\/testcase>/ { if (is_skip) print name ": " (why == "" ? "did not run" : why); is_skip = is_reason = 0 }' "$junit")
}

step_release() {
  begin "release: build"
  build release tests all || return 0
  begin "release: tests"
  run_tests release
  begin "headers compile alone"
  cut headers || check headers cmake --build --preset release -j "$jobs" --target all_verify_interface_header_sets
  begin "format"
  if command -v clang-format-14 > /dev/null; then
    check format bash -c "find base index store transport gpu client tests cmake -name '*.h' -o -name '*.cc' -o -name '*.c' 2> /dev/null |
      xargs clang-format-14 --dry-run -Werror"
  else
    skips+=("format: clang-format 14 is not installed")
    count format 0 0 1
  fi
}

# Random tests get fewer rounds under a sanitizer, where each takes ten times as long. The release build runs 1,000 seeds of the
# simulation, changes 100 bytes in each kind of file of the disk tier and lets the attacker of verbs try 1,000,000 times.
step_asan() {
  begin "asan: build"
  build asan tests || return 0
  begin "asan: tests"
  KV_SIM_SEEDS=200 KV_CORRUPT_SAMPLES=25 KV_VERBS_ATTACKS=100000 run_tests asan
}

step_tsan() {
  begin "tsan: build"
  build tsan tests || return 0
  begin "tsan: tests"
  # ThreadSanitizer maps its memory at fixed addresses, which some kernels' address randomisation takes.
  local launcher=()
  if setarch -R true 2> /dev/null; then launcher=(setarch -R); fi
  KV_SIM_SEEDS=200 KV_CORRUPT_SAMPLES=25 KV_VERBS_ATTACKS=100000 run_tests tsan "${launcher[@]}"
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
  local program corpus good=0 bad=0 pids=() pid
  while read -r program corpus; do
    [ -n "$program" ] || continue
    fuzz_one "$program" "$corpus" &
    pids+=($!)
    if [ ${#pids[@]} -ge "$jobs" ]; then
      for pid in "${pids[@]}"; do if wait "$pid"; then good=$((good + 1)); else bad=$((bad + 1)); fi; done
      pids=()
    fi
  done < build/asan/fuzz_targets.txt
  for pid in "${pids[@]}"; do if wait "$pid"; then good=$((good + 1)); else bad=$((bad + 1)); fi; done
  [ $((good + bad)) -gt 0 ] || { echo '   no fuzz target was built'; bad=1; }
  count fuzz "$good" "$bad" 0
}

# in_simulator ARCHITECTURE ORDER PROGRAM: the CUDA tests of PROGRAM, on kernels compiled for that compute capability. ORDER says when
# enqueued work is done: `sequence` at once, `lazy` when it is waited for, `random` in between. Races and wild accesses that the
# simulator finds are failures too.
in_simulator() {
  local name=cuda-$1-$2-$3
  local log=$logs/$name.log findings=$logs/$name.findings
  rm -f "$findings"
  env KV_CUDA_MODULE="$root/build/simulator/$1/libkvstore_cuda.so" GPUSIM_ORDER="$2" GPUSIM_DEVICES=2 GPUSIM_REPORT="$findings" \
    timeout "$(left 900)" "build/release/tests/gpu/kv_gpu_$3_test" --gtest_filter='*Cuda*:*ADevice*' > "$log" 2>&1 || { tail -n 40 "$log"; return 1; }
  # The two findings that tests cause on purpose: freeing memory of no device, and copies of memory that is not page-locked.
  ! grep -vE 'cudaFree of what is not allocated|asynchronous copy of pageable memory|^ *$' "$findings" 2> /dev/null
}

# python_environment: prints the interpreter that has what the package's tests need; or says why there is none, and fails
python_environment() {
  local python=${KV_PYTHON:-python3} needed=(nanobind scikit_build_core numpy pytest hypothesis)
  command -v "$python" > /dev/null || { echo "there is no $python"; return 1; }
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "$python is older than 3.10"; return 1; }
  local include
  include=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
  [ -f "$include/Python.h" ] || { echo "$python has no headers: apt-get install python3-dev"; return 1; }
  if [ -n "${KV_PYTHON:-}" ] && "$python" -c "import $(IFS=,; echo "${needed[*]}")" 2> /dev/null; then
    echo "$python"
    return
  fi
  local folder=$root/build/python/venv
  "$python" -m venv --system-site-packages "$folder" > "$logs/python-venv.log" 2>&1 ||
    { echo "no virtual environment: apt-get install python3-venv"; return 1; }
  if ! "$folder/bin/python" -c "import $(IFS=,; echo "${needed[*]}")" 2> /dev/null; then
    timeout "$(left 300)" "$folder/bin/python" -m pip install -q --disable-pip-version-check --retries 1 --timeout 15 \
      "${needed[@]//_/-}" mypy ruff >> "$logs/python-venv.log" 2>&1 || { echo "pip finds no packages"; return 1; }
  fi
  echo "$folder/bin/python"
}

# install_package STEP SITE PYTHON [OPTION...]: builds the package with pip's further options into SITE, which is no environment: that may
# be a person's own. On failure shows the end of the log and counts one failure
install_package() {
  local step=$1 site=$2 python=$3
  shift 3
  rm -rf "$site"
  if timeout "$(left)" "$python" -m pip install -q --disable-pip-version-check --no-build-isolation --no-deps --target "$site" "$@" \
    client/python > "$logs/$step-build.log" 2>&1; then
    printf '   built in %d s for %s\n' $((SECONDS - step_began)) "$("$python" --version)"
    return 0
  fi
  if cut "$step build"; then return 1; fi
  tail -n 40 "$logs/$step-build.log"
  count "$step build" 0 1 0
  return 1
}

# pytest_step NAME FOLDER SITE PYTHON SECONDS [ARGUMENT...]: runs and counts the tests of FOLDER with the package in SITE. KV_PRELOAD:
# libraries that Python is to load first
pytest_step() {
  local name=$1 folder=$2 site=$3 python=$4 seconds=$5 junit=$logs/${1// /-}.xml log=$logs/${1// /-}.log good=0 bad=1 skip=0
  shift 5
  rm -f "$junit"
  # From the tests' folder: from the package's, `python -m` would find the sources, without the extension.
  (cd client/python/tests && PYTHONPATH=$site KV_NODE=$root/build/release/store/node/kvstore-node HF_HUB_OFFLINE=1 \
    timeout "$(left "$seconds")" env ${KV_PRELOAD:+LD_PRELOAD="$KV_PRELOAD"} "$python" -m pytest -q -rs --junitxml="$junit" \
    -p no:cacheprovider "$@" "$root/$folder") > "$log" 2>&1 ||
    tail -n 120 "$log"
  if [ -s "$junit" ]; then
    read -r good bad skip < <("$python" - "$junit" <<'END'
import sys, xml.etree.ElementTree as tree
suite = tree.parse(sys.argv[1]).getroot().find("testsuite")
total, failed, errors, skipped = (int(suite.get(name)) for name in ("tests", "failures", "errors", "skipped"))
print(total - failed - errors - skipped, failed + errors, skipped)
END
    )
  fi
  count "$name" "$good" "$bad" "$skip"
  while IFS= read -r line; do skips+=("$name: $line"); done < <(sed -n 's/^SKIPPED //p' "$log")
}

step_python() {
  begin 'python: the package'
  if cut python; then return; fi
  local python
  if ! python=$(python_environment); then
    skips+=("python: $python")
    count python 0 0 1
    return
  fi
  build release kvstore-node kvstorectl || return 0
  local site=$root/build/python/site tool
  install_package python "$site" "$python" || return 0
  pytest_step python client/python/tests "$site" "$python" 1200
  # Beside the package, all that deploy and tests have in Python.
  local tests=../../tests
  local others="../../deploy/grafana ../../deploy/make_pages.py $tests/observe $tests/kubernetes"
  # Folders with a conftest are looked at one by one: there is one of that name.
  for tool in "mypy" "mypy of deploy and tests" "mypy of page tests" "ruff check" "ruff format --check"; do
    local command=$tool
    case $tool in
      "mypy of deploy"*) command="mypy $others $tests/programs" ;;
      "mypy of page"*) command="mypy $tests/page $tests/programs" ;;
      ruff*) command="$tool . $others $tests/page $tests/programs" ;;
    esac
    # shellcheck disable=SC2086  # words
    if "$python" -m ${tool%% *} --version > /dev/null 2>&1; then
      check "python $tool" bash -c "cd client/python && $python -m $command"
    else
      skips+=("python: $tool is not installed")
      count "python $tool" 0 0 1
    fi
  done
}

# has_debian_python STEP MODULES: Debian's own Python and its packages: the tests need nothing else, and pip may find nothing. What is
# absent besides, they say themselves. Where one of MODULES is absent the step is counted as skipped
debian_python=/usr/bin/python3
has_debian_python() {
  deploy/install-dependencies.sh "--$1" > "$logs/$1-install.log" 2>&1 || tail -n 5 "$logs/$1-install.log"
  if "$debian_python" -c "import $2" > /dev/null 2>&1; then return 0; fi
  skips+=("$1: not all of Python's $2 are there: deploy/install-dependencies.sh --$1")
  count "$1" 0 0 1
  return 1
}

step_observe() {
  begin 'observe: alerts and dashboards'
  if cut observe; then return; fi
  has_debian_python observe pytest || return 0
  build release kvstore-node kvstorectl kvstore-bench kv_faulty_disk || return 0
  pytest_step observe tests/observe "$root/tests/observe" "$debian_python" 600
  sed -n '/ queries of dashboards: /s/^/   /p' "$logs/observe.log"
}

step_page() {
  begin 'page: the status page in a browser'
  if cut page; then return; fi
  has_debian_python page pytest || return 0
  build release kvstore-node kvstore_c || return 0
  pytest_step page tests/page "$root/tests/page" "$debian_python" 400
  sed -n '/^page: /s/^/   /p' "$logs/page.log"
}

# What cannot be run here is in the log, with the reason.
step_docs() {
  begin 'docs: the commands of README.md and docs/'
  if cut docs; then return; fi
  local folder=${KV_BUILD:-build/release} log=$logs/docs.log
  if [ "$folder" = build/release ]; then build release kvstore-node kvstorectl kvstore-bench kvstore_c || return 0; fi
  KV_BUILD=$folder timeout "$(left 300)" tests/docs/run_docs.py > "$log" 2>&1 || sed -n '/^FAILED/,/^passed/p' "$log"
  if ! read -r good bad skip < <(sed -n 's/^docs: \([0-9]*\) passed, \([0-9]*\) failed, \([0-9]*\) skipped$/\1 \2 \3/p' "$log"); then
    tail -n 20 "$log"
    good=0 bad=1 skip=0
  fi
  [ "$skip" = 0 ] || skips+=("docs: $skip blocks or statements: $log names each with its reason")
  count docs "$good" "$bad" "$skip"
}

step_kubernetes() {
  begin 'kubernetes: what deploy/kubernetes says'
  if cut kubernetes; then return; fi
  has_debian_python kubernetes pytest,yaml || return 0
  build release kvstore-node kvstorectl || return 0
  pytest_step kubernetes tests/kubernetes "$root/tests/kubernetes" "$debian_python" 300
}

# The interpreter is not instrumented: the runtime is loaded before it, and what Python keeps to its end is no leak of ours. Memory is
# not measured: the sanitizer keeps what was freed.
step_python_asan() {
  begin 'python_asan: the package under AddressSanitizer'
  if cut python_asan; then return; fi
  local python clang=clang-16 runtime
  command -v "$clang" > /dev/null || clang=clang
  runtime=$("$clang" -print-file-name="libclang_rt.asan-$(uname -m).so" 2> /dev/null) || true
  local why=''
  python=$(python_environment) || why=$python
  [ -f "$runtime" ] || why="$clang has no shared runtime of AddressSanitizer"
  if [ -n "$why" ]; then
    skips+=("python_asan: $why")
    count python_asan 0 0 1
    return
  fi
  build release kvstore-node kvstorectl || return 0
  local site=$root/build/python/asan-site define=-Ccmake.define
  CC=$clang CXX=clang++${clang#clang} install_package python_asan "$site" "$python" -Cbuild-dir="$root/build/python/asan" \
    "$define.KV_SANITIZE=address,undefined" "$define.CMAKE_CXX_FLAGS_RELEASE=-O1 -gline-tables-only" -Cinstall.strip=false || return 0
  KV_PRELOAD="$runtime $("$clang" -print-file-name=libstdc++.so.6)" ASAN_OPTIONS=$ASAN_OPTIONS:detect_leaks=0 \
    pytest_step python_asan client/python/tests "$site" "$python" 2400
}

# engine_environment ENGINE LIST PYTHON: prints an interpreter that has the engine, PYTHON if that is not empty; or says why there is
# none, and fails
engine_environment() {
  local engine=$1 list=client/python/tests/engines/$2 folder=$root/build/engines/$1-venv python=$3
  if [ -n "$python" ]; then
    "$python" -c "import $engine, pytest" > /dev/null 2>&1 || { echo "$python has no $engine or no pytest"; return 1; }
    echo "$python"
    return
  fi
  python=$(command -v python3.11) || { echo "there is no python3.11"; return 1; }
  [ "$(uname -m)" = x86_64 ] || { echo "the list is for x86-64"; return 1; }
  if ! cmp -s "$list" "$folder/installed"; then
    rm -rf "$folder"
    "$python" -m venv "$folder" > "$logs/$engine-venv.log" 2>&1 || { echo "no virtual environment: apt-get install python3-venv"; return 1; }
    timeout "$(left 900)" "$folder/bin/python" -m pip install -q --disable-pip-version-check --retries 1 --timeout 15 --no-deps \
      --require-hashes -r "$list" >> "$logs/$engine-venv.log" 2>&1 || { echo "pip finds no packages"; return 1; }
    cp "$list" "$folder/installed"
  fi
  echo "$folder/bin/python"
}

# engine_step ENGINE LIST PYTHON: engines pin different releases of the same packages, so each has an environment of its own
engine_step() {
  local engine=$1 python
  begin "engines: the package and $engine"
  if cut "engines $engine"; then return; fi
  if ! python=$(engine_environment "$@"); then
    skips+=("engines $engine: $python")
    count "engines $engine" 0 0 1
    return
  fi
  build release kvstore-node || return 0
  local site=$root/build/engines/$engine-site tools=$root/build/engines/tools
  # The package's build tools are not the engine's dependencies: a folder of their own.
  if ! { [ -d "$tools" ] || timeout "$(left 300)" "$python" -m pip install -q --disable-pip-version-check \
    --target "$tools" nanobind scikit-build-core; } > "$logs/engines-tools.log" 2>&1; then
    rm -rf "$tools"
    skips+=("engines $engine: pip finds no packages")
    count "engines $engine" 0 0 1
    return
  fi
  PYTHONPATH=$tools install_package "engines-$engine" "$site" "$python" || return 0
  local other others=()
  for other in vllm sglang lmcache; do
    [ "$other" = "$engine" ] || others+=("--ignore-glob=*/test_${other}_*" "--ignore-glob=*/test_identity_${other}*")
  done
  pytest_step "engines $engine" client/python/tests/engines "$site" "$python" 1800 "${others[@]}"
  plant_in_engine "$engine" "$site" "$python"
}

step_engines() {
  engine_step vllm requirements.txt "${KV_ENGINES_PYTHON:-}"
  engine_step sglang requirements-sglang.txt "${KV_SGLANG_PYTHON:-}"
  engine_step lmcache requirements-lmcache.txt "${KV_LMCACHE_PYTHON:-}"
}

# plant_in_engine ENGINE SITE PYTHON: plants that engine's bugs of tests/planted/engines one by one in a copy of the package in SITE. Their
# headers are those of tests/planted/run.sh without Build; Tests is an expression of pytest -k, and Engine names the engine, vllm unless
# it is there. The tests have passed before, without the bug. With KV_CUDA_MODULE those whose header has Device: cuda, without it the
# others.
plant_in_engine() {
  local engine=$1 site=$2 python=$3 copy=$root/build/engines/planted patch name log status planted=0 caught=0
  for patch in "$root"/tests/planted/engines/*.patch; do
    name=$(sed -n 's/^Engine: //p' "$patch")
    [ "${name:-vllm}" = "$engine" ] || continue
    # Those of a GPU's pages need one: step_cuda.
    [ "$(sed -n 's/^Device: //p' "$patch")" = "${KV_CUDA_MODULE:+cuda}" ] || continue
    if cut "engines $engine planted"; then return; fi
    name=$(basename "$patch" .patch) log=$logs/engines-planted-$(basename "$patch" .patch).log status=0
    planted=$((planted + 1))
    rm -rf "$copy"
    mkdir -p "$copy"
    cp -r "$site/kvstore" "$copy/"
    # The patches are of client/python/kvstore.
    if ! patch -p3 -s --no-backup-if-mismatch -d "$copy" < "$patch" > "$log" 2>&1; then
      printf '   MISSED  %s: the patch does not apply any more\n' "$name"
      continue
    fi
    (cd client/python/tests && PYTHONPATH=$copy KV_NODE=$root/build/release/store/node/kvstore-node HF_HUB_OFFLINE=1 timeout "$(left 300)" \
      "$python" -m pytest -q -p no:cacheprovider -k "$(sed -n 's/^Tests: //p' "$patch")" "$root/client/python/tests/engines") >> "$log" 2>&1 ||
      status=$?
    if [ "$status" = 1 ]; then  # of pytest: tests ran, and some failed
      caught=$((caught + 1))
      printf '   caught  %s\n' "$name"
    else
      printf '   MISSED  %s: %s [pytest: %s]\n' "$name" "$(sed -n 's/^What: //p' "$patch")" "$status"
    fi
  done
  count "engines $engine planted" "$caught" $((planted - caught)) 0
}

step_cuda() {
  begin 'cuda: compiled kernels in a simulator'
  local why='' architecture program run good=0 bad=0 runs=() pids=() pid
  [ -n "${KV_CUDA_SIMULATOR:-}" ] || why='KV_CUDA_SIMULATOR names no folder'
  command -v "${NVCC:-nvcc}" > /dev/null || [ -x /usr/local/cuda/bin/nvcc ] || why='there is no nvcc'
  if [ -n "$why" ]; then
    skips+=("cuda: $why")
    count cuda 0 0 1
    return
  fi
  if cut cuda; then return; fi
  build release tests || return 0
  for architecture in 90 120; do
    if ! sh "$KV_CUDA_SIMULATOR/build.sh" "$root" "$root/build/simulator/$architecture" "$architecture" > "$logs/cuda-build.log" 2>&1; then
      tail -n 40 "$logs/cuda-build.log"
      bad=$((bad + 1))
      continue
    fi
    for program in copy_matrix quantise_matrix rotate_matrix compress_matrix verified_matrix cuda_staging differential; do
      runs+=("$architecture sequence $program")
    done
    # Only staging orders its streams itself; the other tests wait after each call.
    runs+=("$architecture lazy cuda_staging" "$architecture random cuda_staging")
  done
  for run in "${runs[@]}"; do
    # shellcheck disable=SC2086  # three words
    in_simulator $run &
    pids+=($!)
    if [ ${#pids[@]} -ge "$jobs" ]; then
      if wait "${pids[0]}"; then good=$((good + 1)); else bad=$((bad + 1)); fi
      pids=("${pids[@]:1}")
    fi
  done
  for pid in "${pids[@]}"; do if wait "$pid"; then good=$((good + 1)); else bad=$((bad + 1)); fi; done
  count cuda "$good" "$bad" 0
  in_simulator_from_python
}

# in_simulator_from_python: the package's tests of a GPU's memory, and of vLLM's connector with pages there, on the simulated device
in_simulator_from_python() {
  local python why='' site=$root/build/python/site
  local -x KV_CUDA_MODULE=$root/build/simulator/90/libkvstore_cuda.so GPUSIM_REPORT=$logs/cuda-python.findings
  rm -f "$GPUSIM_REPORT"
  python=$(python_environment) || why=$python
  if [ -n "$why" ]; then
    skips+=("cuda python: $why")
    count 'cuda python' 0 0 1
  elif install_package 'cuda python' "$site" "$python"; then
    pytest_step 'cuda python' client/python/tests/test_device.py "$site" "$python" 600
  fi
  python=${KV_ENGINES_PYTHON:-$root/build/engines/vllm-venv/bin/python}
  site=$root/build/engines/vllm-site
  if ! "$python" -c 'import vllm, pytest' > /dev/null 2>&1 || [ ! -d "$site/kvstore" ]; then
    skips+=("cuda vllm: there is no environment with vLLM and the package: deploy/test.sh --engines makes it")
    count 'cuda vllm' 0 0 1
  else
    pytest_step 'cuda vllm' client/python/tests/engines/test_vllm_device.py "$site" "$python" 1200
    plant_in_engine vllm "$site" "$python"
  fi
  # The tests free page-locked memory while other streams have work.
  check 'cuda python findings' bash -c "! grep -vE 'host memory unregistered with work still enqueued|^ *\$' '$GPUSIM_REPORT' 2> /dev/null"
}

# run_in_vm NAME NET PROGRAM FILTER: a program of tests on that network's devices, counted test by test
run_in_vm() {
  local name=$1 net=$2 devices=rxe0,rxe0 log=$logs/rdma-$1.log good bad
  local link=(KV_VERBS_TEST_LATE=rxe9 KV_VERBS_TEST_LATE_ADD="ip link add eth9 type dummy && ip link set eth9 up &&
      ip addr add 10.79.0.1/24 dev eth9 && rdma link add rxe9 type rxe netdev eth9")
  if cut "rdma $name"; then return; fi
  if [ "$net" = pair ]; then
    devices=rxe0,rxe1
    link+=(KV_VERBS_TEST_LINK=eth1 KV_VERBS_TEST_ROUTES="ip route replace 10.77.0.1 dev eth1 src 10.77.0.2 table 102;
      ip route replace 10.77.0.2 dev eth0 src 10.77.0.1 table 101")  # a cut of the link removes this route
  fi
  env "${link[@]}" KV_RDMA_VM_MEMORY="${KV_RDMA_VM_MEMORY:-6144}" KV_VERBS_TEST_DEVICES=$devices \
    KV_VERBS_MODULE="$root/build/release/transport/ibverbs/libkvstore_verbs.so" \
    tests/rdma_vm/run.sh --net "$net" --timeout "$(left 900)" "build/release/tests/$3" --gtest_filter="$4" \
    > "$log" 2>&1 || grep -vE '^\[ +(OK|RUN) ' "$log" | tail -n 200
  good=$(grep -cE '^\[ +OK \]' "$log" || true)
  bad=$(grep -cE '^\[  FAILED  \].* \([0-9]+ ms\)$' "$log" || true)
  # Without a closing line the program did not get to its end.
  if ! grep -q '^\[  PASSED  \]' "$log" && ! cut "rdma $name"; then bad=$((bad + 1)); fi
  count "rdma $name" "$good" "$bad" "$(grep -cE '^\[  SKIPPED \].* \([0-9]+ ms\)$' "$log" || true)"
}

# script_in_vm NAME PROGRAM...: tests/rdma_vm/NAME.sh with these programs; its lines "passed: " and "FAILED: " are counted
script_in_vm() {
  local name=$1 log=$logs/rdma-$1.log status=0 bad
  shift
  if cut "rdma $name"; then return; fi
  KV_VERBS_MODULE=$root/build/release/transport/ibverbs/libkvstore_verbs.so \
    tests/rdma_vm/run.sh --timeout "$(left 300)" "tests/rdma_vm/$name.sh" "$@" > "$log" 2>&1 || status=$?
  [ "$status" = 0 ] || tail -n 100 "$log"
  bad=$(grep -c '^FAILED: ' "$log" || true)
  if [ "$status" != 0 ] && [ "$bad" = 0 ] && ! cut "rdma $name"; then bad=1; fi  # it did not get to the end
  count "rdma $name" "$(grep -c '^passed: ' "$log" || true)" "$bad" 0
}

# Emulated, each network takes five minutes or more.
step_rdma_half() {
  if [ $(($(commit_number) / 12 % 2)) = 0 ]; then step_rdma loop; else step_rdma pair; fi
}

# step_rdma [NET]: clients and nodes over both networks, or over that one
step_rdma() {
  begin "rdma: Soft-RoCE in a virtual machine"
  local log=$logs/rdma-vm.log
  if ! deploy/install-dependencies.sh --rdma > "$log" 2>&1 || ! tests/rdma_vm/run.sh --check >> "$log" 2>&1; then
    skips+=("rdma: $(tail -n 1 "$log")")
    count rdma 0 0 1
    return
  fi
  build release verbs_test e2e_test numa_client || return 0
  if [ ! -e build/release/transport/ibverbs/libkvstore_verbs.so ]; then
    skips+=("rdma: the module was not built, libibverbs-dev is not installed")
    count rdma 0 0 1
    return
  fi
  script_in_vm doctor build/release/client/tools/kvstorectl
  KV_RDMA_VM_NUMA=2 script_in_vm numa build/release/store/node/kvstore-node build/release/client/tools/kvstorectl \
    build/release/tests/rdma_vm/numa_client build/release/client/tools/kvstore-bench
  run_in_vm loop loop transport/verbs_test '*/device'
  run_in_vm pair pair transport/verbs_test '*Conformance*/device:*Message*/device:*Model*/device:*Mover*/device:*Process*/device'
  local net filter='*/verbs*:*RdmaDevice*:DeviceMemoryE2eTest.BlocksReach*'
  for net in loop pair; do
    [ "$net" = loop ] || filter+=':*RdmaLink*'  # only a pair's link can be cut
    if [ "${1:-$net}" = "$net" ]; then
      run_in_vm "e2e-$net" "$net" e2e/e2e_test "$filter"
    else
      skips+=("rdma e2e-$net: not this commit's turn: deploy/test.sh --rdma has both")
      count "rdma e2e-$net" 0 0 1
    fi
  done
}

# in_debian RELEASE WHAT: runs WHAT, as tests/debian/inside.sh knows it, in a bare Debian of that release
in_debian() {
  local name="debian $1" log=$logs/debian-$1.log good bad skip
  begin "debian $1: $2"
  if [ "$(. /etc/os-release && echo "${ID:-}${VERSION_ID:-}")" = "debian$1" ]; then
    skips+=("$name: this is one, and the other steps run on it")
    count "$name" 0 0 1
    return
  fi
  if ! deploy/install-dependencies.sh --debian > "$log" 2>&1 || ! tests/debian/run.sh --check "$1" >> "$log" 2>&1; then
    skips+=("$(tail -n 1 "$log")")
    count "$name" 0 0 1
    return
  fi
  timeout "$(left)" tests/debian/run.sh "$1" tests/debian/inside.sh "$2" 2>&1 | tee "$log" | grep -vE '^\[|^--|^ *$' | tail -n 200 | sed 's/^/   /' || true
  if cut "$name"; then return; fi
  read -r good bad skip < <(sed -nE 's/^([0-9]+) passed, ([0-9]+) failed, ([0-9]+) skipped$/\1 \2 \3/p' "$log" | tail -n 1) ||
    read -r good bad skip <<< '0 1 0'  # it did not get to the end
  count "$name" "$good" "$bad" "$skip"
  while IFS= read -r line; do skips+=("$name: $line"); done < <(sed -n 's/^skipped: //p' "$log")
  [ "$2" = python ] || swap_directories "$1"
}

# swap_directories RELEASE: this system's RocksDB and that Debian's take turns on one spill directory
swap_directories() {
  local test=RocksExchangeTest.ADirectoryGoesFromOneReleaseToAnotherAndBack program=build/release/tests/node/kv_rocks_disk_test
  local there log=$logs/debian-$1-exchange.log
  build release kv_rocks_disk_test || return 0
  there=$(tests/debian/run.sh --root "$1")/exchange
  rm -rf "$there"
  exchange() {
    local turn
    for turn in 1 2 3; do
      echo "turn $turn: here"
      env KV_EXCHANGE_DIR="$there" "$program" --gtest_filter="$test" || return 1
      echo "turn $turn: Debian $1"
      tests/debian/run.sh "$1" env KV_EXCHANGE_DIR=/exchange "$program" --gtest_filter="$test" || return 1
    done
    env KV_EXCHANGE_DIR="$there" "$program" --gtest_filter="$test"
  }
  check "debian $1 exchange" exchange "$1"
}

# packages_of RELEASE: built in that Debian (here, if this is one), then installed in fresh copies of a bare one
packages_of() {
  local release=$1 name="packages $1" log=$logs/packages-$1.log good bad skip debs part bare=$root/build/debian/bare try=$root/build/debian/try
  begin "packages: Debian $1"
  if cut "$name"; then return; fi
  if ! deploy/install-dependencies.sh --debian > "$log" 2>&1 || ! KV_DEBIAN_ROOTS=$bare tests/debian/run.sh --check "$release" >> "$log" 2>&1; then
    skips+=("packages: $(tail -n 1 "$log")")
    count "$name" 0 0 1
    return
  fi
  local builder=(tests/debian/run.sh "$release") from
  from=$(tests/debian/run.sh --root "$release")/kvstore/build
  # shellcheck source=/dev/null
  if [ "$(. /etc/os-release && echo "${ID:-}${VERSION_ID:-}")" = "debian$release" ]; then builder=() from=$root/build; fi
  bare=$(KV_DEBIAN_ROOTS=$bare tests/debian/run.sh --root "$release")
  debs=$from/packages
  for part in build install python container; do
    log=$logs/packages-$release-$part.log
    if cut "$name $part"; then return; fi
    if [ "$part" = build ]; then
      timeout "$(left)" "${builder[@]}" tests/debian/inside.sh packages > "$log" 2>&1 || true
    else
      if [ "$part" = python ] && [ ! -d "$from/wheels" ]; then continue; fi  # the build has said why
      rm -rf "$try"
      mkdir -p "$try"
      cp -a "$bare" "$try/"
      mkdir -p "$try/${bare##*/}/kvstore/build"
      cp -r "$debs" "$try/${bare##*/}/kvstore/build/packages"
      cp -r "$debs" "$try/${bare##*/}/packages"
      [ ! -d "$from/wheels" ] || cp -r "$from/wheels" "$try/${bare##*/}/kvstore/build/wheels"
      KV_DEBIAN_ROOTS=$try timeout "$(left)" tests/debian/run.sh "$release" tests/debian/packages.sh "$part" > "$log" 2>&1 || true
    fi
    grep -E '^(passed|FAILED): ' "$log" | sed 's/^/   /' || true
    read -r good bad skip < <(sed -nE 's/^([0-9]+) passed, ([0-9]+) failed, ([0-9]+) skipped$/\1 \2 \3/p' "$log" | tail -n 1) ||
      read -r good bad skip <<< '0 1 0'  # it did not get to the end
    [ "$bad" = 0 ] || tail -n 60 "$log"
    count "$name $part" "$good" "$bad" "$skip"
    while IFS= read -r line; do skips+=("$name: $line"); done < <(sed -n 's/^skipped: //p' "$log")
    if [ "$part" = build ] && [ "$bad" != 0 ]; then return; fi
  done
  rm -rf "$try"
}

step_packages12() { packages_of 12; }
step_packages13() { packages_of 13; }
step_debian12() { in_debian 12 commands; }
step_debian13() { in_debian 13 commands; }
step_debian13_python() { in_debian 13 python; }
step_debian13_store() { in_debian 13 store; }

# A tenth of the planted bugs, another tenth with each commit: all of them take two hours.
step_planted_tenth() {
  local names=() left=() name turn
  turn=$(($(commit_number) % 10))
  for name in tests/planted/*.patch; do
    if [ "$turn" = 0 ]; then names+=("$(basename "$name" .patch)"); else left+=("$name"); fi
    turn=$(((turn + 1) % 10))
  done
  skips+=("planted: ${#left[@]} bugs that this commit's turn leaves out: deploy/test.sh --planted has all")
  skipped=$((skipped + ${#left[@]}))
  step_planted "${names[@]}"
}

# step_planted [NAME...]: all planted bugs, or these
step_planted() {
  begin "planted bugs"
  local log=$logs/planted.log
  timeout "$(left)" tests/planted/run.sh "$@" 2>&1 | tee "$log" | sed 's/^/   /' || true
  local planted caught
  caught=$(grep -c '^caught ' "$log" || true)
  planted=$((caught + $(grep -c '^MISSED ' "$log" || true)))
  if ! grep -qE '^[0-9]+ planted, [0-9]+ caught$' "$log" && ! cut "planted bugs from the $((planted + 1)). on"; then
    planted=$((planted + 1))  # it did not get to the end
  fi
  count planted "$caught" $((planted - caught)) 0
}

for step in "${steps[@]}"; do
  if is_over; then
    begin "$step"
    cut "$step"
  else
    "step_$step"
  fi
done

printf '\n== summary (%d min)\n' $((SECONDS / 60))
printf '   %s\n' "${summary[@]}"
if [ ${#skips[@]} -gt 0 ]; then
  printf '\nSkipped, and why:\n'
  printf '   %s\n' "${skips[@]}"
fi
printf '\n%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
