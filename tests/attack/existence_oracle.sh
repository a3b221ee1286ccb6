#!/usr/bin/env bash
# Does the time of an answer tell a tenant what another one has stored? Starts a node with two tenants on a Unix socket, and
# runs existence_oracle (see there) against it. Not part of the tests: it takes a minute, and a busy machine adds noise.
#
#   tests/attack/existence_oracle.sh BUILD-DIR [PAIRS]       10,000 pairs by default
set -euo pipefail
[ $# -ge 1 ] || { sed -n '2,5p' "$0"; exit 2; }
build=$1 pairs=${2:-10000}
dir=$(mktemp -d)
node=
stop() {
  if [ -n "$node" ]; then kill "$node" 2> /dev/null || true; wait "$node" 2> /dev/null || true; fi
  rm -rf "$dir"
}
trap stop EXIT
victim=$(head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n')
attacker=$(head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n')
for who in victim attacker; do
  printf '[%s]\ntoken-sha256 = ["%s"]\ntenant = "%s"\nroles = ["reader", "writer"]\n\n' \
    "$who" "$(printf %s "${!who}" | sha256sum | cut -d' ' -f1)" "$who"
done > "$dir/policy.toml"
printf '[tenants.victim]\nmemory-bytes = "64MiB"\n' >> "$dir/policy.toml"
# Both have one record, and only the node's secret keeps them apart; KV_ORACLE_PLAIN=1: by the record's tenant, as without.
more=() record=one
if [ -n "${KV_ORACLE_PLAIN:-}" ]; then
  record=own
else
  head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' > "$dir/secret"
  chmod 400 "$dir/secret"
  more=(--tenant-secret-file "$dir/secret")
fi
"$build/store/node/kvstore-node" --listen "unix://$dir/node.sock" --capacity 256MiB --policy-file "$dir/policy.toml" \
  "${more[@]}" --admin none > "$dir/log" 2>&1 &
node=$!
for _ in $(seq 200); do [ -S "$dir/node.sock" ] && break; sleep 0.1; done
[ -S "$dir/node.sock" ] || { cat "$dir/log" >&2; exit 1; }
"$build/tests/attack/existence_oracle" "unix://$dir/node.sock" "$victim" "$attacker" "$pairs" "$record"
