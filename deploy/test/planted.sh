# shellcheck shell=bash disable=SC2154  # deploy/test.sh has the other names
# deploy/test/planted.sh: bugs that the tests must catch. Sourced by deploy/test.sh.

step_planted() {
  begin "planted bugs"
  local log=$logs/planted.log site=$root/build/python/site python planted caught
  # The bugs of the Python package need it and a node.
  if python=$(python_environment) && build release kvstore-node; then
    [ -d "$site/kvstore" ] || install_package planted-python "$site" "$python" || true
  fi
  KV_PYTHON=$python KV_PYTHON_SITE=$site timeout "$(left)" tests/planted/run.sh 2>&1 | tee "$log" | sed 's/^/   /' || true
  caught=$(grep -c '^caught ' "$log" || true)
  planted=$((caught + $(grep -c '^MISSED ' "$log" || true)))
  fails planted "$log" < <(sed -n 's/^MISSED  //p' "$log")
  if ! grep -qE '^[0-9]+ planted, [0-9]+ caught$' "$log" && ! cut "planted bugs from the $((planted + 1)). on"; then
    planted=$((planted + 1))
    fail planted 'it did not get to its end' "$log"
  fi
  count planted "$caught" $((planted - caught)) 0
}
