#!/usr/bin/env bash
# Runs a command as a client of nodes that are each behind a link of their own: network namespaces on one bridge, whose
# links tc shapes. Every byte goes through the kernel's network as between machines.
#
#   tests/netns/with_links.sh [--build DIR] [--nodes 4] [--rate 1gbit] [--delay 5ms] [--loss 1%] [--slow N] \
#       [--client-rate RATE] [--node-args "..."] -- COMMAND...
#
# COMMAND runs in a namespace of its own, with KVSTORE_ENDPOINTS naming the nodes (tcp://10.177.0.11:7400 and so on) and
# KV_NODE_PIDS. --rate: of each node's link, each way (qdisc tbf). --delay, --loss: of what each node sends (netem); with
# --slow only of node N, 0 for the first. Needs root, ip and tc; exit status 77, and one line that says why, where it may
# not do this. Leaves nothing behind.
set -euo pipefail

build=build/release nodes=4 rate='' delay='' loss='' slow='' client_rate='' node_args=''
while [ $# -gt 0 ]; do
  case $1 in
    --build) build=$2 ;;
    --nodes) nodes=$2 ;;
    --rate) rate=$2 ;;
    --delay) delay=$2 ;;
    --loss) loss=$2 ;;
    --slow) slow=$2 ;;
    --client-rate) client_rate=$2 ;;
    --node-args) node_args=$2 ;;
    --) shift; break ;;
    -h | --help) sed -n '2,13s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "with_links: unknown argument '$1' (see --help)" >&2; exit 2 ;;
  esac
  shift 2
done
[ $# -gt 0 ] || { echo "with_links: no command" >&2; exit 2; }

skip() { echo "with_links: skipped: $*"; exit 77; }
[ "$(id -u)" -eq 0 ] || skip "not root"
for tool in ip tc; do command -v $tool > /dev/null || skip "no $tool (package iproute2)"; done

tag=kv$$
scratch=$(mktemp -d)
pids=()
clean_up() {
  local code=$? pid i
  trap - EXIT
  for pid in "${pids[@]}"; do kill -CONT "$pid" 2> /dev/null || true; kill -TERM "$pid" 2> /dev/null || true; done
  for pid in "${pids[@]}"; do wait "$pid" 2> /dev/null || true; done
  for i in c $(seq 0 $((nodes - 1))); do ip netns del "$tag-$i" 2> /dev/null || true; done
  ip link del "$tag" 2> /dev/null || true
  if [ $code -ne 0 ] && [ $code -ne 77 ]; then tail -n 5 "$scratch"/*.log >&2 2> /dev/null || true; fi
  rm -rf "$scratch"
  exit $code
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

ip netns add "$tag-c" 2> "$scratch/why" || skip "no network namespaces here: $(cat "$scratch/why")"
ip link add "$tag" type bridge 2> "$scratch/why" || skip "no bridge here: $(cat "$scratch/why")"
ip link set "$tag" up

# join NAME ADDRESS: a namespace with one link to the bridge. ${tag}NAME is the bridge's end of it.
join() {
  [ "$1" = c ] || ip netns add "$tag-$1"
  ip link add "$tag$1" type veth peer name eth0 netns "$tag-$1"
  ip link set "$tag$1" master "$tag" up
  ip -n "$tag-$1" addr add "$2/24" dev eth0
  ip -n "$tag-$1" link set eth0 up
  ip -n "$tag-$1" link set lo up
}
shape_rate() { # NAME RATE: both ways
  tc qdisc add dev "$tag$1" root tbf rate "$2" burst 256k latency 50ms 2> "$scratch/why" || skip "no tbf: $(cat "$scratch/why")"
  ip netns exec "$tag-$1" tc qdisc add dev eth0 root handle 1: tbf rate "$2" burst 256k latency 50ms
}
join c 10.177.0.1
[ -z "$client_rate" ] || shape_rate c "$client_rate"
endpoints=''
for i in $(seq 0 $((nodes - 1))); do
  join "$i" "10.177.0.$((11 + i))"
  parent=root
  if [ -n "$rate" ]; then
    shape_rate "$i" "$rate"
    parent='parent 1:1'
  fi
  if [ -n "$delay$loss" ] && { [ -z "$slow" ] || [ "$slow" = "$i" ]; }; then
    # shellcheck disable=SC2086  # words of a command
    ip netns exec "$tag-$i" tc qdisc add dev eth0 $parent netem ${delay:+delay $delay} ${loss:+loss $loss} 2> "$scratch/why" ||
      skip "no netem in this kernel: $(cat "$scratch/why")"
  fi
  # shellcheck disable=SC2086  # options
  ip netns exec "$tag-$i" "$build/store/node/kvstore-node" --node-id "link$i" --listen "tcp://10.177.0.$((11 + i)):7400" \
    --admin none --threads 1 --plaintext-on-trusted-network true $node_args > "$scratch/node$i.log" 2>&1 &
  pids+=($!)
  endpoints=$endpoints${endpoints:+,}tcp://10.177.0.$((11 + i)):7400
done
export KVSTORE_ENDPOINTS=$endpoints KV_NODE_PIDS="${pids[*]}"
ip netns exec "$tag-c" "$build/client/tools/kvstorectl" ping --wait 30s --count 1 > "$scratch/ping.log" 2>&1 ||
  { cat "$scratch/ping.log" >&2; exit 1; }
ip netns exec "$tag-c" "$@"
