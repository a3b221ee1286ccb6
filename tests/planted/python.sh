# shellcheck shell=bash disable=SC2154  # tests/planted/run.sh, which sources this, has the other names
# tests/planted/python.sh: bugs of the Python package, planted one at a time in a copy of its sources.
#
#   KV_PYTHON       interpreter that has what the tests need (python3)
#   KV_PYTHON_SITE  folder with the built package, whose extension module is used (build/python/site)
#   KV_NODE         the node (build/release/store/node/kvstore-node)
#
# As with other bugs: the tests pass without the bug, and a bug is caught when one ran and failed.

# plant_in_python PATCH...
plant_in_python() {
  [ $# -gt 0 ] || return 0
  local site=${KV_PYTHON_SITE:-$root/build/python/site} copy=$root/build/planted/python patch name why='' status expression=''
  for patch in "$@"; do expression+=${expression:+ or }"($(header "$patch" Python))"; done
  if ! compgen -G "$site/kvstore/_kvstore*.so" > /dev/null; then
    why="there is no package in $site: install client/python there, or name another folder in KV_PYTHON_SITE"
  elif ! { copy_package && run_pytest "$expression"; } > "$log/python-sound.log" 2>&1 ||
    ! grep -qE '[0-9]+ passed' "$log/python-sound.log"; then  # without a node, torch and so on, all are skipped
    tail -n 20 "$log/python-sound.log"
    why='without any bug, the tests do not pass; planting it would prove nothing'
  fi
  for patch in "$@"; do
    name=$(basename "$patch" .patch) status=0
    planted=$((planted + 1))
    if [ -n "$why" ]; then
      say "MISSED  $name: $why"
      continue
    fi
    copy_package
    if ! patch -p3 -s --no-backup-if-mismatch -d "$copy" < "$patch" > "$log/$name.log" 2>&1; then
      say "MISSED  $name: the patch does not apply any more; bring it up to date"
      continue
    fi
    run_pytest "$(header "$patch" Python)" >> "$log/$name.log" 2>&1 || status=$?
    case $status in  # of pytest
      1)
        caught=$((caught + 1))
        say "caught  $name: $(header "$patch" What) [by $(sed -nE 's/^FAILED [^:]*::([^ ]+).*/\1/p' "$log/$name.log" | head -n 1)]"
        ;;
      0) say "MISSED  $name: $(header "$patch" What)" ;;
      5) say "MISSED  $name: no test matches '$(header "$patch" Python)', so nothing could have noticed it; bring its line 'Python:' up to date" ;;
      *) say "MISSED  $name: the tests did not run to their end (pytest: $status), which proves nothing" ;;
    esac
  done
}

copy_package() {
  rm -rf "$copy"
  mkdir -p "$copy"
  cp -r "$tree/client/python/kvstore" "$copy/"
  rm -f "$copy"/kvstore/_kvstore*.so  # maybe a link to another
  cp "$site"/kvstore/_kvstore*.so "$copy/kvstore/"
}

run_pytest() (
  cd "$tree/client/python/tests" || exit 2
  PYTHONPATH=$copy PYTHONDONTWRITEBYTECODE=1 KV_NODE=${KV_NODE:-$root/build/release/store/node/kvstore-node} HF_HUB_OFFLINE=1 timeout 600 \
    "${KV_PYTHON:-python3}" -m pytest -q -p no:cacheprovider -k "$1" .
)
