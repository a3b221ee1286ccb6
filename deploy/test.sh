#!/usr/bin/env bash
# Installs what is missing, builds, runs the tests and counts them.
#
#   deploy/test.sh               what CI runs: the first group below, the same steps in the same order for every commit; 75 minutes at most
#
# With each commit:
#
#   deploy/test.sh --quick       release build: all tests, include rules, headers that compile alone, format
#   deploy/test.sh --clang       Clang compiles libraries and programs without a warning, as the sanitizers' builds need
#   deploy/test.sh --docs        the commands of README.md and docs/*.md, run as they stand, each page in namespaces of its own (skipped
#                                where there are none). KV_BUILD names another build folder than build/release
#   deploy/test.sh --python      builds the Python package into an environment of its own and runs its tests, mypy and ruff (skipped where
#                                pip finds no packages). KV_PYTHON names the interpreter; if it has nanobind, scikit-build-core and
#                                pytest it is used as it is, with torch and transformers if it has those. Then tests of processes and
#                                of the interpreter's end with a newer Python (KV_NEWER_PYTHON; skipped where there is none)
#   deploy/test.sh --observe     alerts, recording rules and dashboards: Prometheus and Alertmanager on nodes under load, and
#                                deploy/observe.sh (skipped where they cannot be installed). KVSTORE_TRACES names a folder with a trace
#   deploy/test.sh --page        the status page in a real Chromium, on nodes with 0, 10 and a million blocks (skipped where Chromium cannot
#                                be installed). Pictures of it: build/test-logs/page/
#   deploy/test.sh --kubernetes  deploy/kubernetes: rendered, and held against what kvstore-node has (skipped without kubectl or kustomize)
#   deploy/test.sh --cuda        the tests of the compiled CUDA kernels, of the Python package and of the connector for vLLM with pages on a
#                                GPU, in a functional simulator of one (skipped without nvcc, and
#                                unless KV_CUDA_SIMULATOR names the simulator's folder)
#   deploy/test.sh --rdma-loop   the tests of verbs, and kvstorectl doctor, on a Soft-RoCE device in a virtual machine; a link that is cut,
#                                on two devices; from Python into a simulated GPU's memory, after --python and --cuda (QEMU; skipped
#                                where there is none)
#
# Before a release, since they take an hour or more in all:
#
#   deploy/test.sh --all         the steps above with all of --rdma, --asan and --tsan, then --fuzz, --debian13 and --planted
#   deploy/test.sh --asan        all tests under AddressSanitizer and UndefinedBehaviorSanitizer (Clang)
#   deploy/test.sh --tsan        all tests under ThreadSanitizer (Clang)
#   deploy/test.sh --fuzz        every decoder under libFuzzer, 10 s each (KV_FUZZ_SECONDS)
#   deploy/test.sh --planted     plants all bugs one by one: the tests must catch each
#   deploy/test.sh --rdma        --rdma-loop, and all of it between two devices as well
#   deploy/test.sh --debian13    the README's commands, an install and all release tests in a bare Debian 13 (debootstrap; skipped
#                                where there is none), and disk directories from one Debian to the other; --debian12 likewise
#
# In no other run:
#
#   deploy/test.sh --sanitize    the programs labelled `parses` under AddressSanitizer and UndefinedBehaviorSanitizer, and those labelled
#                                `threads` under ThreadSanitizer (Clang; cmake/Testing.cmake says which and why)
#   deploy/test.sh --engines     real engines with the package: vLLM, SGLang and LMCache on the CPU, each in an environment of its own of
#                                6 to 10 GB (Python 3.11; skipped where pip finds no packages); then the bugs of tests/planted/engines.
#                                KV_ENGINES_PYTHON names an interpreter that has what client/python/tests/engines/requirements.txt
#                                lists, KV_SGLANG_PYTHON and KV_LMCACHE_PYTHON those of requirements-sglang.txt and -lmcache.txt
#   deploy/test.sh --python-asan the tests of --python with AddressSanitizer and UndefinedBehaviorSanitizer in the package's extension
#                                (Clang; skipped where pip finds no packages)
#   deploy/test.sh --packages    Debian packages for Debian 12 and 13, each built there and installed in a bare one: docs/install.md line by
#                                line, clients in C, C++ and Python, upgrade, removal, purge, the container file (debootstrap; half an
#                                hour). --packages12 and --packages13 do one of them
#   deploy/test.sh --debian13-python   the README's `pip install client/python` in a bare Debian 13, and its ten lines (skipped where
#                                pip finds no packages)
#
# Flags can be combined.
#
# KV_CUDA_ARCHITECTURES="80;120": the CUDA module of the release build has machine code for these alone, not for all six: a minute of
# compilation each.
# KV_TEST_MINUTES=N: after N minutes, what is left is counted as skipped. Without arguments N is 75, else there is no limit. The
# build of the release step has no limit in any case: without it nothing would have been tested.
#
# Logs and JUnit files: build/test-logs/. The output ends with the skips by reason and the names of all failures; the last line counts
# it all. Exits 0 only if nothing failed.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD

steps=()
for argument in "$@"; do
  case $argument in
    --quick) steps+=(release) ;;
    --clang | --docs | --python | --observe | --page | --kubernetes | --cuda | --rdma | --sanitize | --asan | --tsan | --fuzz | --planted | \
      --engines | --debian12 | --debian13 | --packages12 | --packages13) steps+=("${argument#--}") ;;
    --packages) steps+=(packages12 packages13) ;;
    --rdma-loop) steps+=(rdma_loop) ;;
    --debian13-python) steps+=(debian13_python) ;;
    --python-asan) steps+=(python_asan) ;;
    --all) steps=(release clang docs python observe page kubernetes cuda rdma asan fuzz tsan debian13 planted) && break ;;
    -h | --help) awk 'NR == 1 { next } !/^#/ { exit } { sub(/^# ?/, ""); print }' "$0"; exit 0 ;;
    *) echo "test.sh: unknown argument '$argument' (see --help)" >&2; exit 2 ;;
  esac
done
minutes=${KV_TEST_MINUTES:-}
if [ ${#steps[@]} -eq 0 ]; then
  # The same for every commit, so that two runs can be compared. The limit is for a machine without a compiler cache.
  steps=(release clang docs python observe page kubernetes cuda rdma_loop)
  minutes=${minutes:-75}
fi
case $minutes in
  0* | *[!0-9]*) echo "test.sh: KV_TEST_MINUTES is '$minutes', allowed are whole minutes, 1 or more" >&2; exit 2 ;;
esac

"$root/deploy/install-dependencies.sh" --test

# shellcheck disable=SC2034  # of the steps
jobs=$(nproc)
logs=$root/build/test-logs
mkdir -p "$logs"
# Without etcd the tests of clusters are skipped, and counted as that.
deploy/install-dependencies.sh --cluster > "$logs/etcd-install.log" 2>&1 || tail -n 5 "$logs/etcd-install.log"
# Paths relative to the tree, so that a second clone finds in the compiler cache what the first one compiled.
export CCACHE_BASEDIR=$root CCACHE_NOHASHDIR=1 GTEST_COLOR=no CTEST_OUTPUT_ON_FAILURE=1

# left [MOST]: the seconds until the time limit, MOST at most, and never below one
# shellcheck disable=SC2120  # MOST comes from the steps
left() {
  local seconds=$((${minutes:-10000} * 60 - SECONDS)) most=${1:-1000000}
  seconds=$((seconds < most ? seconds : most))
  echo $((seconds > 1 ? seconds : 1))
}

# shellcheck disable=SC2119
is_over() { [ "$(left)" = 1 ]; }

# cut NAME: if the time limit is reached, counts NAME as skipped
cut() {
  is_over || return 1
  skip_step "$1" "left out after $minutes minutes (KV_TEST_MINUTES)"
}

# What all steps count with, then the steps: a function step_NAME each.
for room in report release sanitize python operate cuda engines rdma debian planted; do
  # shellcheck source=/dev/null
  source "$root/deploy/test/$room.sh"
done

for step in "${steps[@]}"; do
  if is_over; then
    begin "$step"
    cut "$step"
  else
    "step_$step"
  fi
done
report
