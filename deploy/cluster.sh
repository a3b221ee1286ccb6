#!/usr/bin/env bash
# A cluster on this machine, and the death of one of its nodes: starts etcd and three nodes on loopback, runs conversations
# through the address of one node, kills another in the middle, shows what that cost, and what the cluster knows. Then it
# starts the dead node again, or stops at once.
#
#   deploy/cluster.sh           all of it, then stops everything
#   deploy/cluster.sh --keep    leaves the cluster running until Ctrl-C, and prints its addresses
#
# Needs build/release (deploy/quickstart.sh makes it) and etcd (package etcd-server, installed if it is missing).
# KVSTORE_PORT (17400) is the first of eight ports. Leaves nothing behind.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf '\n== %s\n' "$*"; }
fail() { printf 'cluster: %s\n' "$*" >&2; exit 1; }

keep=no
case ${1:-} in
  '') ;;
  --keep) keep=yes ;;
  -h | --help) sed -n '2,11s/^# \{0,1\}//p' "$0"; exit 0 ;;
  *) echo "cluster: unknown argument '$1' (see --help)" >&2; exit 2 ;;
esac
first=${KVSTORE_PORT:-17400}
case $first in
  '' | 0* | *[!0-9]*) fail "KVSTORE_PORT is '$first', allowed is a port, 1024 to 65528" ;;
esac
[ "$first" -ge 1024 ] && [ "$first" -le 65528 ] || fail "KVSTORE_PORT is '$first', allowed is a port, 1024 to 65528"

bin=build/release
node=$bin/store/node/kvstore-node
ctl=$bin/client/tools/kvstorectl
bench=$bin/client/tools/kvstore-bench
for program in "$node" "$ctl" "$bench"; do
  [ -x "$program" ] || fail "$program is missing: run deploy/quickstart.sh first, which builds it"
done
command -v etcd > /dev/null || deploy/install-dependencies.sh --cluster

is_taken() { (exec 3<> "/dev/tcp/127.0.0.1/$1") 2> /dev/null; }
for port in $(seq "$first" $((first + 7))); do
  if is_taken "$port"; then fail "something already listens on 127.0.0.1:$port; choose other ports: KVSTORE_PORT=27400 $0"; fi
done

scratch=$(mktemp -d)
declare -A pids=()
wait_for_nodes() {
  local each
  for each in node0 node1 node2; do
    [ -z "${pids[$each]:-}" ] || wait "${pids[$each]}" 2> /dev/null || true
  done
}
clean_up() {
  local code=$? each
  trap - EXIT
  for each in node0 node1 node2 etcd; do  # etcd last: leaving nodes write to it
    [ -z "${pids[$each]:-}" ] || kill -TERM "${pids[$each]}" 2> /dev/null || true
    [ "$each" != node2 ] || wait_for_nodes
  done
  [ -z "${pids[etcd]:-}" ] || wait "${pids[etcd]}" 2> /dev/null || true
  if [ $code -ne 0 ] && [ $code -lt 128 ]; then tail -n 5 "$scratch"/*.log >&2 || true; fi
  rm -rf "$scratch"
  exit $code
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

etcd_url=http://127.0.0.1:$((first + 6))
peer_url=http://127.0.0.1:$((first + 7))
start_etcd() {
  etcd --name demo --data-dir "$scratch/etcd" --listen-client-urls "$etcd_url" --advertise-client-urls "$etcd_url" \
    --listen-peer-urls "$peer_url" --initial-advertise-peer-urls "$peer_url" --initial-cluster "demo=$peer_url" \
    > "$scratch/etcd.log" 2>&1 &
  pids[etcd]=$!
}

endpoint_of() { echo "tcp://127.0.0.1:$((first + $1))"; }
# start_node I: node I, on ports FIRST + I and, for metrics, FIRST + 3 + I
start_node() {
  "$node" --node-id "node$1" --listen "$(endpoint_of "$1")" --admin "127.0.0.1:$((first + 3 + $1))" --capacity 1GiB \
    --threads 1 --etcd "$etcd_url" --etcd-lease-seconds 3 >> "$scratch/node$1.log" 2>&1 &
  pids[node$1]=$!
}
# show_members N: waits until N members have the same map, and prints them
show_members() {
  local until=$((SECONDS + 60))
  until "$ctl" cluster status -e "$(endpoint_of 0)" > "$scratch/status" 2>&1 && [ "$(grep -c ' serving ' "$scratch/status")" = "$1" ]; do
    [ $SECONDS -lt $until ] || fail "the cluster does not have $1 members within 60 s: $(cat "$scratch/status")"
    sleep 0.2
  done
  cat "$scratch/status"
}

say "Starting etcd and three nodes"
start_etcd
for i in 0 1 2; do start_node "$i"; done
show_members 3

say "Conversations through $(endpoint_of 0); the client learns of the others from it. node2 is killed after 3 seconds"
"$bench" chat --endpoint "$(endpoint_of 0)" --sessions 16 --turns 24 --block-bytes 512KiB > "$scratch/chat" 2>&1 &
chat=$!
sleep 3
kill -KILL "${pids[node2]}"
wait "${pids[node2]}" 2> /dev/null || true
unset 'pids[node2]'
echo "node2 is dead: until its lease ends, in 3 seconds, blocks of its own are misses and everything else goes on"
wait "$chat" || fail "the conversations failed: $(cat "$scratch/chat")"
cat "$scratch/chat"
show_members 2

say "Starting node2 again: the same id takes the same share"
start_node 2
show_members 3

if [ "$keep" = yes ]; then
  say "Running until Ctrl-C"
  echo "nodes: $(endpoint_of 0) $(endpoint_of 1) $(endpoint_of 2); metrics: http://127.0.0.1:$((first + 3))/metrics and the two"
  echo "ports after it; etcd: $etcd_url; logs: $scratch"
  wait "${pids[etcd]}" "${pids[node0]}"
fi
say "Stopping everything"
