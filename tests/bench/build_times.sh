#!/usr/bin/env bash
# How long a newcomer waits: wall and processor time of the builds and test runs below, of the last commit, with an empty compiler cache.
#
#   tests/bench/build_times.sh            all rows, some two hours on two cores
#   tests/bench/build_times.sh ROW...     only these
#
#   quickstart12, quickstart13   deploy/quickstart.sh in a bare Debian of that release, packages included (root, debootstrap)
#   cuda                         the CUDA module for all devices (nvcc)
#   build                        everything that the release step of deploy/test.sh builds
#   tests                        the release tests, on that build
#   change                       build and tests again with a warm cache, after a change in one source
#   planted                      one planted bug, then two: the difference is the cost of a bug
#   test                         deploy/test.sh without arguments
#
# KV_TIMES_FOLDER (default build/times) holds the clone and its compiler cache; both are made anew. KV_CHANGED names the source that
# is changed, KV_PLANTED the two bugs. Run it on a quiet machine.
set -euo pipefail
cd "$(dirname "$0")/../.."
case ${1:-} in -h | --help) sed -n '2,17s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
rows=(quickstart12 quickstart13 cuda build tests change planted test)
wanted=("$@")
[ $# -gt 0 ] || wanted=("${rows[@]}")
for row in "${wanted[@]}"; do
  [[ " ${rows[*]} " == *" $row "* ]] || { echo "build_times.sh: no row '$row', allowed are: ${rows[*]}" >&2; exit 2; }
done

root=$PWD
folder=$(realpath -m "${KV_TIMES_FOLDER:-build/times}")
changed=${KV_CHANGED:-store/node/session/session.cc}
read -r -a planted <<< "${KV_PLANTED:-lease-pins-nothing extent-unbounded}"
rm -rf "$folder"
mkdir -p "$folder"
git clone -q "$root" "$folder/kvstore"
cd "$folder/kvstore"
export CCACHE_DIR=$folder/ccache CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1

# timed ROW COMMAND...: prints the row
timed() {
  local row=$1 log=$folder/$1.log result=ok
  shift
  TIMEFORMAT='%R %U %S'
  { time "$@" > "$log" 2>&1; } 2> "$folder/time" || result="failed, see $log"
  awk -v row="$row" -v result="$result" '{ printf "| %-12s | %6.1f min | %6.0f s | %s |\n", row, $1 / 60, $2 + $3, result }' "$folder/time"
}

build() { cmake --build --preset release -j "$(nproc)" --target "$@"; }
in_debian() { KV_DEBIAN_ROOTS=$folder/debian tests/debian/run.sh "$1" deploy/quickstart.sh; }
cuda_module() { cmake --preset release && build kvstore_cuda; }
all_tests() { cmake --preset release && build tests all; }
run_tests() { ctest --test-dir build/release -j "$(nproc)"; }
after_change() { build tests all && run_tests; }

printf '%s\n\n| what | time | of processors | |\n| --- | ---: | ---: | --- |\n' "commit $(git rev-parse --short HEAD), $(nproc) processors"
for row in "${wanted[@]}"; do
  case $row in
    quickstart*)
      release=${row#quickstart}
      KV_DEBIAN_ROOTS=$folder/debian tests/debian/run.sh "$release" true > "$folder/debian.log" 2>&1 || true  # not timed: debootstrap
      timed "$row" in_debian "$release"
      ;;
    cuda) timed cuda cuda_module ;;
    build) timed build all_tests ;;
    tests) timed tests run_tests ;;
    change)
      echo '// A line more.' >> "$changed"
      timed change after_change
      git checkout -q "$changed"
      ;;
    planted)
      tests/planted/run.sh "${planted[0]}" "${planted[1]}" > "$folder/planted-first.log" 2>&1 || true  # what they share is built
      timed "planted, one" tests/planted/run.sh "${planted[0]}"
      timed "planted, two" tests/planted/run.sh "${planted[@]}"
      ;;
    test)
      rm -rf build "$CCACHE_DIR"
      timed test deploy/test.sh
      tail -n 1 "$folder/test.log"
      ;;
  esac
done
