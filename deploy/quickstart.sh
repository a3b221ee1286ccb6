#!/usr/bin/env bash
# From nothing to a running node and back: installs what is missing, builds, starts a node on loopback with the default
# configuration, runs a multi-turn chat workload of growing prefixes through it, shows hit rate and speed, stops it.
#
#   deploy/quickstart.sh
#
# KVSTORE_PORT and KVSTORE_ADMIN_PORT (7400 and 7401) choose other ports. KVSTORE_CUDA=ON builds the module for GPUs too, OFF leaves it
# out; by default it is built where there is a GPU. Leaves build/release behind, and nothing else.
set -euo pipefail
cd "$(dirname "$0")/.."
case ${1:-} in
  '') ;;
  -h | --help) sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 0 ;;
  *) echo "quickstart: takes no argument (see --help)" >&2; exit 2 ;;
esac

port=${KVSTORE_PORT:-7400}
admin_port=${KVSTORE_ADMIN_PORT:-7401}
bin=build/release
node=$bin/store/node/kvstore-node
ctl=$bin/client/tools/kvstorectl
bench=$bin/client/tools/kvstore-bench

say() { printf '\n== %s\n' "$*"; }
fail() { printf 'quickstart: %s\n' "$*" >&2; exit 1; }

scratch=$(mktemp -d)
node_pid=
clean_up() {
  local code=$?
  trap - EXIT
  if [ -n "$node_pid" ] && kill -0 "$node_pid" 2> /dev/null; then
    kill -TERM "$node_pid" 2> /dev/null || true
    wait "$node_pid" 2> /dev/null || true
  fi
  if [ $code -ne 0 ] && [ -s "$scratch/node.log" ]; then
    echo "The node's log ends:" >&2
    tail -n 20 "$scratch/node.log" >&2
  fi
  rm -rf "$scratch"
  exit $code
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# quietly LOG COMMAND...: shows the command's output only if the command fails
quietly() {
  local log=$scratch/$1
  shift
  "$@" > "$log" 2>&1 || { tail -n 60 "$log" >&2; fail "failed: $*"; }
}

say "Installing what is missing"
deploy/install-dependencies.sh

# shows how far Ninja is, at each tenth of its steps
progress() {
  local line tenth=0
  while IFS= read -r line; do
    printf '%s\n' "$line"
    if [[ $line =~ ^\[([0-9]+)/([0-9]+)\] ]] && ((BASH_REMATCH[1] * 10 / BASH_REMATCH[2] > tenth)); then
      tenth=$((BASH_REMATCH[1] * 10 / BASH_REMATCH[2]))
      printf '   %3d %%: %d of %d steps, %d s\n' $((tenth * 10)) "${BASH_REMATCH[1]}" "${BASH_REMATCH[2]}" $((SECONDS - began)) >&3
    fi
  done
}
build() { cmake --build --preset release -j "$(nproc)" --target installed 2>&1 3>&- | progress; }

say "Building (the first time takes some minutes)"
cuda=${KVSTORE_CUDA:-$([ -e /dev/nvidiactl ] && echo ON || echo OFF)}
case $cuda in
  ON) ;;
  OFF) echo "without the module for GPUs; KVSTORE_CUDA=ON builds it, where there is nvcc" ;;
  *) fail "KVSTORE_CUDA is '$cuda', allowed are ON and OFF" ;;
esac
began=$SECONDS
quietly configure.log cmake --preset release -D "KV_CUDA=$cuda"
quietly build.log build 3>&1
echo "built in $((SECONDS - began)) s"

is_taken() { (exec 3<> "/dev/tcp/127.0.0.1/$1") 2> /dev/null; }
for each in "$port" "$admin_port"; do
  if is_taken "$each"; then
    fail "something already listens on 127.0.0.1:$each. Stop it, or choose other ports: KVSTORE_PORT=7500 KVSTORE_ADMIN_PORT=7501 $0"
  fi
done

say "Starting a node: deploy/kvstore-node.toml, tcp://127.0.0.1:$port and a Unix socket"
socket=$scratch/kvstore.sock
"$node" --config deploy/kvstore-node.toml --listen "tcp://127.0.0.1:$port" --listen "unix://$socket" --admin "127.0.0.1:$admin_port" > "$scratch/node.log" 2>&1 &
node_pid=$!
# Ready means that all memory is touched and the node takes work. bash itself asks /readyz, since curl may be absent.
is_ready() {
  local line=
  exec 3<> "/dev/tcp/127.0.0.1/$admin_port" || return 1
  printf 'GET /readyz HTTP/1.0\r\n\r\n' >&3 && IFS= read -r -t 2 line <&3
  exec 3>&-
  [[ $line == *" 200 "* ]]
}
deadline=$((SECONDS + 300))
until is_ready 2> /dev/null; do
  kill -0 "$node_pid" 2> /dev/null || { node_pid=; fail "the node ended while it was starting"; }
  [ $SECONDS -lt $deadline ] || fail "the node was not ready within 300 s"
  sleep 0.1
done
echo "ready: pid $node_pid, metrics on http://127.0.0.1:$admin_port/metrics, and to look at: http://127.0.0.1:$admin_port/status"

say "A multi-turn chat over TCP: each turn sends the conversation so far, gets its cached prefix, stores the rest"
"$bench" chat --endpoint "tcp://127.0.0.1:$port"

say "The same through shared memory"
"$bench" chat --endpoint "unix://$socket"

say "kvstorectl status"
"$ctl" status --endpoint "tcp://127.0.0.1:$port"

say "Stopping the node (SIGTERM)"
kill -TERM "$node_pid"
code=0
wait "$node_pid" || code=$?
node_pid=
[ $code -eq 0 ] || fail "the node exited $code, not 0"
echo "stopped, exit code 0"
echo
echo "To run it yourself:"
echo "  $node --config deploy/kvstore-node.toml"
echo "  $ctl --help"
echo "  $bench --help"
echo "To install it: cmake --install $bin --prefix /usr/local"
