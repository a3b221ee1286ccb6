#!/usr/bin/env bash
# Nodes under load, watched by Prometheus and Alertmanager, all on loopback: to look at metrics, rules and alerts as they are in
# production. Runs until Ctrl-C and leaves nothing behind.
#
#   deploy/observe.sh [--nodes N] [--first-port PORT] [--prometheus-port PORT] [--alertmanager-port PORT] [--build FOLDER]
#
#   --nodes N                 nodes, 1 to 9; the first keeps blocks in memory, the others have a small disk too (2)
#   --first-port PORT         the first node's metrics; the others' follow (the first free ones from 7411 on)
#   --prometheus-port PORT    (the first free one from 9090 on)
#   --alertmanager-port PORT  (the first free one from 9093 on)
#   --build FOLDER            where kvstore is built (build/release)
#
# KVSTORE_TRACES names a folder with a recorded trace (*.jsonl.gz) to replay; without it the load is conversations of kvstore-bench.
# Prometheus, Alertmanager: deploy/install-dependencies.sh --observe. docs/runbook.md says what each alert means.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() { printf 'observe: %s\n' "$*" >&2; exit 1; }
refuse() { printf 'observe: %s (see --help)\n' "$*" >&2; exit 2; }

nodes=2 first_port='' prometheus_port='' alertmanager_port='' build=build/release
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help) sed -n '2,14s/^# \{0,1\}//p' "$0"; exit 0 ;;
    --nodes | --first-port | --prometheus-port | --alertmanager-port | --build) [ $# -ge 2 ] || refuse "$1 wants a value" ;;
    *) refuse "unknown argument '$1'" ;;
  esac
  case $1 in
    --build) build=$2 ;;
    --nodes) [[ $2 =~ ^[1-9]$ ]] || refuse "--nodes is '$2', allowed are 1 to 9"; nodes=$2 ;;
    *) [[ $2 =~ ^[1-9][0-9]{0,4}$ ]] && [ "$2" -le 65535 ] || refuse "$1 is '$2', allowed are 1 to 65535" ;;&
    --first-port) first_port=$2 ;;
    --prometheus-port) prometheus_port=$2 ;;
    --alertmanager-port) alertmanager_port=$2 ;;
  esac
  shift 2
done

node=$build/store/node/kvstore-node bench=$build/client/tools/kvstore-bench
for program in "$node" "$bench"; do
  [ -x "$program" ] || fail "there is no $program. Build it: cmake --preset release && cmake --build --preset release --target installed"
done
for program in prometheus prometheus-alertmanager; do
  command -v "$program" > /dev/null || fail "there is no $program. Install it: deploy/install-dependencies.sh --observe"
done
trace=''
if [ -n "${KVSTORE_TRACES:-}" ]; then
  trace=$(find "$KVSTORE_TRACES" -maxdepth 1 -name '*.jsonl.gz' 2> /dev/null | sort | head -n 1)
  [ -n "$trace" ] || fail "KVSTORE_TRACES is '$KVSTORE_TRACES', which holds no *.jsonl.gz"
fi

is_taken() { (exec 3<> "/dev/tcp/127.0.0.1/$1") 2> /dev/null; }
taken=' '
# choose NAME OPTION PORT FROM: sets NAME to PORT if it is free, or without PORT to the first free port from FROM on
choose() {
  local port=${3:-$4}
  while is_taken "$port" || [[ $taken == *" $port "* ]]; do
    [ -z "$3" ] || fail "something already listens on 127.0.0.1:$port. Stop it, or choose another port: $2"
    port=$((port + 1))
    [ "$port" -lt $(($4 + 1000)) ] || fail "no port from $4 to $port is free. Choose one: $2"
  done
  taken+="$port "
  printf -v "$1" %s "$port"
}
choose prometheus_port --prometheus-port "$prometheus_port" 9090
choose alertmanager_port --alertmanager-port "$alertmanager_port" 9093
admin_ports=()
for ((i = 0; i < nodes; ++i)); do
  choose "admin_ports[$i]" --first-port "${first_port:+$((first_port + i))}" 7411
done

scratch=$(mktemp -d)
pids=() names=()
# end PID: within 15 s, also a stopped process
end() {
  local deadline=$((SECONDS + 15))
  kill -TERM "$1" 2> /dev/null || return 0
  kill -CONT "$1" 2> /dev/null || true
  while kill -0 "$1" 2> /dev/null && [ $SECONDS -lt $deadline ]; do sleep 0.1; done
  kill -KILL "$1" 2> /dev/null || true
}
clean_up() {
  local code=$? i
  trap - EXIT
  trap '' INT TERM
  # The load first, or it would see nodes go.
  for ((i = ${#pids[@]} - 1; i >= 0; --i)); do end "${pids[i]}"; done
  rm -rf "$scratch"
  exit $code
}
trap clean_up EXIT
trap 'echo; echo stopping; exit 0' INT TERM

# start NAME COMMAND...: in its own session, so that Ctrl-C reaches this script alone, which ends all in order
start() {
  local name=$1
  shift
  setsid "$@" > "$scratch/$name.log" 2>&1 &
  pids+=($!) names+=("$name")
}

# answers PORT PATH: by bash itself, since curl may be absent
answers() {
  local line=
  exec 3<> "/dev/tcp/127.0.0.1/$1" || return 1
  printf 'GET %s HTTP/1.0\r\n\r\n' "$2" >&3 && IFS= read -r -t 2 line <&3
  exec 3>&-
  [[ $line == *" 200 "* ]]
}

# has_ended NUMBER: of a started process; prints the end of its log
has_ended() {
  ! kill -0 "${pids[$1]}" 2> /dev/null || return 1
  printf 'observe: %s has ended. Its log ends:\n' "${names[$1]}" >&2
  tail -n 20 "$scratch/${names[$1]}.log" >&2
}

# wait_for PORT PATH: until the latest process answers there
wait_for() {
  local deadline=$((SECONDS + 60)) last=$((${#pids[@]} - 1))
  until answers "$1" "$2" 2> /dev/null; do
    ! has_ended $last || exit 1
    [ $SECONDS -lt $deadline ] || fail "${names[last]} did not answer http://127.0.0.1:$1$2 within 60 s"
    sleep 0.1
  done
}

endpoints=() targets=()
for ((i = 0; i < nodes; ++i)); do
  disk=()
  [ "$i" = 0 ] || disk=(--disk-path "$scratch/disk-$i" --disk-capacity 256MiB)
  start "node-$i" "$node" --node-id "node-$i" --listen "unix://$scratch/node-$i.sock" --admin "127.0.0.1:${admin_ports[i]}" \
    --capacity 64MiB "${disk[@]}"
  wait_for "${admin_ports[i]}" /readyz
  endpoints+=("unix://$scratch/node-$i.sock") targets+=("\"127.0.0.1:${admin_ports[i]}\"")
done

start alertmanager prometheus-alertmanager --config.file=deploy/prometheus/alertmanager.yml --storage.path="$scratch/alertmanager" \
  --web.listen-address="127.0.0.1:$alertmanager_port" --cluster.listen-address=
wait_for "$alertmanager_port" /-/ready

# The shipped configuration, with these ports, and a scrape every five seconds for quick results.
cp deploy/prometheus/kvstore.rules.yml "$scratch/"
sed "s/127.0.0.1:9093/127.0.0.1:$alertmanager_port/; s/_interval: 15s/_interval: 5s/" deploy/prometheus/prometheus.yml > "$scratch/prometheus.yml"
printf -- '- targets: [%s]\n' "$(IFS=,; echo "${targets[*]}")" > "$scratch/kvstore.targets.yml"
printf -- '- targets: []\n' > "$scratch/kvstore-client.targets.yml"
start prometheus prometheus --config.file="$scratch/prometheus.yml" --storage.tsdb.path="$scratch/prometheus" \
  --web.listen-address="127.0.0.1:$prometheus_port"
wait_for "$prometheus_port" /-/ready

# run_load: until it is ended. kvstore-bench fails while a node is away; the load goes on
run_load() {
  local at child='' number
  trap 'kill "$child" 2> /dev/null; exit 0' TERM
  at=$(IFS=,; echo "${endpoints[*]}")
  for ((number = 0; ; ++number)); do
    if [ -n "$trace" ]; then
      "$bench" replay --trace "$trace" --endpoint "$at" --block-bytes 16KiB --limit-requests 500 --salt "$((number % 8))" &
    else
      "$bench" chat --endpoint "$at" --block-bytes 64KiB --salt "$((number % 8))" &
    fi
    child=$!
    wait "$child" || true
    sleep 1 &
    child=$!
    wait "$child" || true
  done
}
run_load > "$scratch/load.log" 2>&1 &
pids+=($!) names+=(load)

cat <<END
Nodes, Prometheus, Alertmanager and a load are running.

  metrics       $(printf 'http://127.0.0.1:%s/metrics ' "${admin_ports[@]}")
  to look at    $(printf 'http://127.0.0.1:%s/status ' "${admin_ports[@]}")
  Prometheus    http://127.0.0.1:$prometheus_port/targets, /alerts, /graph?g0.expr=instance:kvstore_match_hit_ratio:rate5m
  Alertmanager  http://127.0.0.1:$alertmanager_port
  node 0        $build/client/tools/kvstorectl status -e ${endpoints[0]}
  logs          $scratch/*.log
  a fault       kill -STOP ${pids[0]} takes node 0 away, and KvstoreNodeDown fires within two minutes; kill -CONT ${pids[0]} ends it
  dashboards    deploy/grafana/*.json, in Grafana with this Prometheus as its data source

Ctrl-C ends it all.
END
while true; do
  for ((i = 0; i < ${#pids[@]}; ++i)); do ! has_ended $i || exit 1; done
  sleep 1 &
  wait $! || true
done
