#!/usr/bin/env bash
# Two nodes and a client with mutual TLS on this machine, from nothing: makes a certification authority and certificates
# with openssl, writes a configuration for each node, starts them, moves blocks, and shows who is not let in.
#
#   deploy/tls-demo.sh                 all of it, then stops everything
#   deploy/tls-demo.sh --keep          leaves the nodes running until Ctrl-C, and says how to reach them
#   deploy/tls-demo.sh --loopback      on 127.0.0.2 and 127.0.0.3, also where it could make network namespaces
#   deploy/tls-demo.sh --files DIR     writes certificates and configurations to DIR, and starts nothing
#
# As root with `ip`, each node and the client have a network namespace and an address of their own (10.77.0.1 to 10.77.0.3);
# the machine's own network is left alone. Needs build/release (deploy/quickstart.sh makes it) and openssl. KVSTORE_PORT
# (17450) is the nodes' port, the one after it that of metrics. Leaves nothing behind but DIR. docs/security.md explains it.
set -euo pipefail
start=$PWD
cd "$(dirname "$0")/.."

say() { printf '\n== %s\n' "$*"; }
fail() { printf 'tls-demo: %s\n' "$*" >&2; exit 1; }

keep=no loopback=no files=
while [ $# -gt 0 ]; do
  case $1 in
    --keep) keep=yes ;;
    --loopback) loopback=yes ;;
    --files) [ $# -gt 1 ] || fail '--files needs a directory'; files=$2; shift ;;
    -h | --help) sed -n '2,12s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "tls-demo: unknown argument '$1' (see --help)" >&2; exit 2 ;;
  esac
  shift
done
port=${KVSTORE_PORT:-17450}
case $port in '' | 0* | *[!0-9]*) fail "KVSTORE_PORT is '$port', allowed is a port, 1024 to 65534" ;; esac
[ "$port" -ge 1024 ] && [ "$port" -le 65534 ] || fail "KVSTORE_PORT is '$port', allowed is a port, 1024 to 65534"
command -v openssl > /dev/null || fail 'openssl is missing: apt-get install openssl'
bin=build/release
node=$bin/store/node/kvstore-node ctl=$bin/client/tools/kvstorectl bench=$bin/client/tools/kvstore-bench

spaces=no
if [ "$loopback" = no ] && [ -z "$files" ] && [ "$(id -u)" = 0 ] && command -v ip > /dev/null &&
  ip netns add "kvtls-probe-$$" 2> /dev/null; then
  ip netns del "kvtls-probe-$$"
  spaces=yes
fi
if [ "$spaces" = yes ]; then
  addresses=(10.77.0.1 10.77.0.2)
else
  addresses=(127.0.0.2 127.0.0.3)
fi

scratch=$(mktemp -d)
pids=()
clean_up() {
  local code=$? each
  trap - EXIT
  for each in "${pids[@]}"; do kill -TERM "$each" 2> /dev/null || true; done
  for each in "${pids[@]}"; do wait "$each" 2> /dev/null || true; done
  if [ "$spaces" = yes ]; then
    for each in 1 2 3 switch; do ip netns del "kvtls-$$-$each" 2> /dev/null || true; done
  fi
  if [ $code -ne 0 ] && [ $code -lt 128 ]; then tail -n 5 "$scratch"/*.log >&2 2> /dev/null || true; fi
  rm -rf "$scratch"
  exit $code
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
pki=${files:+$(cd "$start" && realpath -m "$files")}
pki=${pki:-$scratch}
mkdir -p "$pki"
chmod 700 "$pki"

# -- certificates. In production the CA's key lies elsewhere: its holder can impersonate anyone.

# make_ca: signs nodes and clients alike, with the list of its revoked certificates
make_ca() {
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj '/CN=kvstore demo CA' \
    -keyout "$pki/ca.key" -out "$pki/ca.pem" -addext 'basicConstraints=critical,CA:TRUE' \
    -addext 'keyUsage=critical,keyCertSign,cRLSign' 2> /dev/null
  cat > "$pki/ca.cnf" << END
[ca]
default_ca = demo
[demo]
database = $pki/index.txt
crlnumber = $pki/crlnumber
default_md = sha256
default_crl_days = 7
certificate = $pki/ca.pem
private_key = $pki/ca.key
END
  : > "$pki/index.txt"
  echo 01 > "$pki/crlnumber"
  make_crl
}
make_crl() {
  openssl ca -config "$pki/ca.cnf" -gencrl -out "$pki/crl.new" 2> /dev/null
  mv "$pki/crl.new" "$pki/crl.pem"
}
# make_cert NAME SUBJECT-ALTERNATIVE-NAMES: NAME.pem and NAME.key; each file is replaced in one step, the key first
make_cert() {
  openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=$1" -keyout "$pki/$1.key.new" -out "$pki/$1.csr" 2> /dev/null
  openssl x509 -req -in "$pki/$1.csr" -CA "$pki/ca.pem" -CAkey "$pki/ca.key" -days 7 -out "$pki/$1.pem.new" \
    -extfile <(printf 'subjectAltName=%s\nextendedKeyUsage=serverAuth,clientAuth\n' "$2") 2> /dev/null
  rm "$pki/$1.csr"
  mv "$pki/$1.key.new" "$pki/$1.key"
  mv "$pki/$1.pem.new" "$pki/$1.pem"
}
write_config() {
  cat > "$pki/node$1.toml" << END
node-id = "node$1"
listen = ["tls://${addresses[$1 - 1]}:$port"]
admin = "https://${addresses[$1 - 1]}:$((port + 1))"
tls-cert = "$pki/node$1.pem"
tls-key = "$pki/node$1.key"
tls-ca = "$pki/ca.pem"
tls-crl = "$pki/crl.pem"
tls-allowed-name = ["spiffe://demo/worker/*", "spiffe://demo/operator"]
policy-file = "$pki/policy.toml"
capacity = "256MiB"
threads = 1
END
}

say "Certificates, a policy and configurations in $pki"
make_ca
cat > "$pki/policy.toml" << END
[operators]
match = ["spiffe://demo/operator"]
roles = ["operator"]
[workers]
match = ["spiffe://demo/worker/*"]
roles = ["reader", "writer"]
END
for i in 1 2; do
  make_cert "node$i" "IP:${addresses[i - 1]},URI:spiffe://demo/node/$i"
  write_config $i
done
make_cert worker 'URI:spiffe://demo/worker/1'
make_cert operator 'URI:spiffe://demo/operator'
make_cert stranger 'URI:spiffe://demo/somebody'
ls "$pki"
if [ -n "$files" ]; then
  echo "start a node: kvstore-node --config $pki/node1.toml"
  exit 0
fi
for program in "$node" "$ctl" "$bench"; do
  [ -x "$program" ] || fail "$program is missing: run deploy/quickstart.sh first, which builds it"
done

# -- three hosts, or three addresses of one

# at I COMMAND...: runs it on host I
at() {
  local host=$1
  shift
  if [ "$spaces" = yes ]; then ip netns exec "kvtls-$$-$host" "$@"; else "$@"; fi
}
if [ "$spaces" = yes ]; then
  say 'Three network namespaces on a switch of their own: 10.77.0.1 and .2 for nodes, .3 for the client'
  ip netns add "kvtls-$$-switch"
  ip -n "kvtls-$$-switch" link add br0 type bridge
  ip -n "kvtls-$$-switch" link set br0 up
  for i in 1 2 3; do
    ip netns add "kvtls-$$-$i"
    ip -n "kvtls-$$-switch" link add "port$i" type veth peer name eth0 netns "kvtls-$$-$i"
    ip -n "kvtls-$$-switch" link set "port$i" master br0 up
    ip -n "kvtls-$$-$i" addr add "10.77.0.$i/24" dev eth0
    ip -n "kvtls-$$-$i" link set eth0 up
    ip -n "kvtls-$$-$i" link set lo up
  done
fi

# as NAME COMMAND...: the client's host, with the certificate of NAME
endpoints=tls://${addresses[0]}:$port,tls://${addresses[1]}:$port
as() {
  local who=$1
  shift
  at 3 env KVSTORE_ENDPOINTS="$endpoints" KVSTORE_TLS_CERT="$pki/$who.pem" KVSTORE_TLS_KEY="$pki/$who.key" \
    KVSTORE_TLS_CA="$pki/ca.pem" KVSTORE_TLS_CRL="$pki/crl.pem" "$@"
}

say 'Two nodes'
for i in 1 2; do
  # Not by at(): a function in the background is a separate shell, and its pid not the node's.
  if [ "$spaces" = yes ]; then
    ip netns exec "kvtls-$$-$i" "$node" --config "$pki/node$i.toml" > "$scratch/node$i.log" 2>&1 &
  else
    "$node" --config "$pki/node$i.toml" > "$scratch/node$i.log" 2>&1 &
  fi
  pids+=($!)
done
as operator "$ctl" ping --wait 60s --count 3

say 'A worker puts and gets blocks; every byte is compared'
as worker "$bench" run --op get --block-bytes 256KiB --batch 16 --blocks 256 --duration 2s --memory 64MiB --check

say 'The operator looks at a node, and reads its metrics by HTTPS'
as operator "$ctl" doctor --admin "https://${addresses[0]}:$((port + 1))" | grep -E 'certificate|CA of|revoked|admin'
if command -v curl > /dev/null; then
  at 3 curl -sS --cacert "$pki/ca.pem" --cert "$pki/operator.pem" --key "$pki/operator.key" \
    "https://${addresses[0]}:$((port + 1))/metrics" | grep -E '^kvstore_tls_'
fi

# expect_refused WHAT COMMAND...: requires that the command fails, and shows its reason
expect_refused() {
  local what=$1
  shift
  if "$@" > "$scratch/refused" 2>&1; then fail "$what was let in"; fi
  printf '%s: refused\n' "$what"
  grep -m 1 -oE '(tls: |needs tls-|connection lost|permission denied).*' "$scratch/refused" | sed 's/^/    /' || true
}
say 'Who is not let in'
expect_refused 'A certificate of the CA whose name is not allowed' as stranger "$ctl" ping --count 1
expect_refused 'A client without a certificate' at 3 "$ctl" ping --count 1 --endpoint "tls://${addresses[0]}:$port"
expect_refused 'Plain TCP' at 3 "$ctl" ping --count 1 --deadline 1s --endpoint "tcp://${addresses[0]}:$port"
expect_refused 'A node under a name that it does not have' as worker "$ctl" ping --count 1 --tls-server-name spiffe://demo/other

say 'Who is let in, and may not do it'
expect_refused 'A worker that asks for all namespaces' as worker "$ctl" namespaces

say 'New certificates for node 1 and a revoked worker, while the nodes run'
make_cert node1 "IP:${addresses[0]},URI:spiffe://demo/node/1"
openssl ca -config "$pki/ca.cnf" -revoke "$pki/worker.pem" 2> /dev/null
make_crl
kill -HUP "${pids[@]}"
until [ "$(cat "$scratch"/node?.log | grep -c 'certificates: reloaded')" -ge 2 ]; do sleep 0.2; done
as operator "$ctl" ping --count 1
expect_refused 'The revoked worker' as worker "$ctl" ping --count 1

if [ "$keep" = yes ]; then
  say 'Running until Ctrl-C'
  [ "$spaces" = no ] || echo "the client's host: ip netns exec kvtls-$$-3 COMMAND"
  echo "KVSTORE_ENDPOINTS=$endpoints KVSTORE_TLS_CERT=$pki/operator.pem KVSTORE_TLS_KEY=$pki/operator.key KVSTORE_TLS_CA=$pki/ca.pem $ctl status"
  wait "${pids[@]}"
fi
say 'Stopping everything'
