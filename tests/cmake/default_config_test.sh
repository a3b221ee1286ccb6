#!/usr/bin/env bash
# deploy/kvstore-node.toml is accepted, changes no default, and names every option that kvstore-node has.
#   default_config_test.sh PATH-OF-kvstore-node PATH-OF-kvstore-node.toml
set -euo pipefail
node=$1 config=$2
with=$("$node" --config "$config" --check-config)
without=$("$node" --check-config)
[ "$with" = "$without" ] || { printf 'FAILED: the file changes defaults:\n%s\n%s\n' "$with" "$without" >&2; exit 1; }
count=0
for option in $("$node" --help | grep -oE '^ +--[a-z-]+' | sed 's/^ *--//'); do
  case $option in help | version | config | check-config | autotune | json | toml) continue ;; esac
  count=$((count + 1))
  grep -qE "^(# )?$option = " "$config" || { echo "FAILED: $config does not name the option $option" >&2; exit 1; }
done
[ $count -gt 10 ] || { echo "FAILED: only $count options found in --help" >&2; exit 1; }
echo "$count options, all in $config"
