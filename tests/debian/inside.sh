#!/usr/bin/env bash
# What tests/debian/run.sh is asked to run in a bare Debian: the last line is 'N passed, N failed, N skipped'.
#
#   tests/debian/inside.sh commands   the README's two commands, an install, and what the README says under "Operate it"
#   tests/debian/inside.sh packages   builds packages (build/packages) with lintian, and a wheel (build/wheels); tests/debian/packages.sh
#                                     then installs them in another Debian of that release, which has nothing else
#   tests/debian/inside.sh python     what the README says under "From Python": pip install client/python, a node, the ten lines
set -euo pipefail
cd "$(dirname "$0")/../.."
jobs=$(nproc)
passed=0 failed=0 skipped=0
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1

# check NAME COMMAND...: one thing that passes or fails
check() {
  local name=$1 log
  shift
  log=$(mktemp)
  if "$@" > "$log" 2>&1; then
    passed=$((passed + 1))
    printf 'passed: %s\n' "$name"
  else
    failed=$((failed + 1))
    tail -n 60 "$log"
    printf 'FAILED: %s\n' "$name"
  fi
  rm -f "$log"
}

versions() {
  printf 'Debian %s: GCC %s, Boost %s, RocksDB %s, CMake %s\n' "$(cat /etc/debian_version)" "$(gcc -dumpfullversion)" \
    "$(awk '/define BOOST_LIB_VERSION/ { gsub(/"/, ""); print $3 }' /usr/include/boost/version.hpp)" \
    "$(dpkg-query -W -f '${Version}' librocksdb-dev)" "$(dpkg-query -W -f '${Version}' cmake)"
}

# The README's lines, with what was built and with what an install made of it.
operate() {
  local prefix=$1 pid code=0
  build/release/store/node/kvstore-node --help &&
    build/release/store/node/kvstore-node --config deploy/kvstore-node.toml --check-config || return 1
  "$prefix/bin/kvstore-node" --config "$prefix/etc/kvstore/kvstore-node.toml" --check-config || return 1
  "$prefix/bin/kvstore-node" --capacity 64MiB --listen tcp://127.0.0.1:7400 &
  pid=$!
  for _ in $(seq 600); do
    build/release/client/tools/kvstorectl ping > /dev/null 2>&1 && break
    sleep 0.1
  done
  { build/release/client/tools/kvstorectl status && "$prefix/bin/kvstorectl" doctor &&
    build/release/client/tools/kvstore-bench limit --help && build/release/client/tools/kvstore-bench run --help; } || code=$?
  kill -TERM "$pid"
  wait "$pid" || code=$?
  return "$code"
}

# The README's ten lines, run twice: the second process must load what the first one stored.
ten_lines() {
  local python=$1 socket=/tmp/kvstore.sock pid first second code=0
  awk '/^## From Python/ { here = 1 } here && /^```$/ { exit } in_code; here && /^```python$/ { in_code = 1 }' README.md > /tmp/ten_lines.py
  grep -q 'kvstore.Client("unix:///tmp/kvstore.sock")' /tmp/ten_lines.py || { echo 'the README has no such lines'; return 1; }
  build/release/store/node/kvstore-node --capacity 64MiB --listen "unix://$socket" --admin none &
  pid=$!
  for _ in $(seq 600); do
    [ -S "$socket" ] && break
    sleep 0.1
  done
  first=$(cd /tmp && "$python" ten_lines.py) && second=$(cd /tmp && "$python" ten_lines.py) &&
    "$python" -m kvstore status --endpoint "unix://$socket" || code=$?
  printf '%s\n%s\n' "$first" "$second"
  [ "$first" = '0 of 4 blocks were cached, 4 stored' ] && [ "$second" = '4 of 4 blocks were cached, 0 stored' ] || code=1
  kill -TERM "$pid"
  wait "$pid" || code=$?
  return "$code"
}

case ${1:-} in
  python)
    deploy/install-dependencies.sh > /dev/null
    apt-get install -y -q python3-dev python3-venv > /tmp/apt.log 2>&1 || tail -n 20 /tmp/apt.log
    versions
    python3 -m venv /tmp/venv
    if ! /tmp/venv/bin/pip download -q --no-deps -d /tmp/probe nanobind > /tmp/pip.log 2>&1; then
      tail -n 3 /tmp/pip.log
      echo 'skipped: pip finds no packages here (nanobind, scikit-build-core, NumPy)'
      skipped=1
    else
      check 'pip install client/python' /tmp/venv/bin/pip install client/python
      check 'build a node' bash -c "cmake --preset release && cmake --build --preset release -j $jobs --target kvstore-node"
      check "the README's ten lines, twice" ten_lines /tmp/venv/bin/python
    fi
    ;;
  packages)
    check 'deploy/package.sh, and lintian' deploy/package.sh --no-cuda --lint
    rm -rf build/wheels build/packages-work/venv
    apt-get install -y -q python3-dev python3-venv > /dev/null 2>&1 || true
    if ! python3 -m venv build/packages-work/venv ||
      ! build/packages-work/venv/bin/pip download -q --no-deps -d build/packages-work/probe nanobind > /dev/null 2>&1; then
      echo 'skipped: the Python client, since pip finds no packages here (nanobind, scikit-build-core, NumPy)'
      skipped=1
    else
      check 'build a wheel' build/packages-work/venv/bin/pip wheel -q --no-deps -w build/wheels client/python
    fi
    ;;
  commands)
    check 'deploy/quickstart.sh' deploy/quickstart.sh
    versions
    check 'cmake --install after it' cmake --install build/release --prefix /tmp/prefix
    check 'what the README says under "Operate it"' operate /tmp/prefix
    log=$(mktemp)
    deploy/test.sh --quick 2>&1 | tee "$log" || true
    read -r good bad skip < <(sed -nE 's/^([0-9]+) passed, ([0-9]+) failed, ([0-9]+) skipped$/\1 \2 \3/p' "$log" | tail -n 1) ||
      read -r good bad skip <<< '0 1 0'
    passed=$((passed + good)) failed=$((failed + bad)) skipped=$((skipped + skip))
    ;;
  *) echo "inside.sh: 'packages', 'commands' or 'python'" >&2; exit 2 ;;
esac
printf '%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
[ "$failed" = 0 ]
