# shellcheck shell=bash disable=SC2154  # deploy/test.sh has the other names
# deploy/test/debian.sh: other releases of Debian, and Debian packages. Sourced by deploy/test.sh.

# shellcheck source=/dev/null
this_system=$(. /etc/os-release && echo "${ID:-}${VERSION_ID:-}")

# in_debian RELEASE WHAT: runs WHAT, as tests/debian/inside.sh knows it, in a bare Debian of that release
in_debian() {
  local name="debian $1" log=$logs/debian-$1.log
  begin "debian $1: $2"
  if [ "$this_system" = "debian$1" ]; then
    skip_step "$name" 'this is one, and the other steps run on it'
    return
  fi
  if ! deploy/install-dependencies.sh --debian > "$log" 2>&1 || ! tests/debian/run.sh --check "$1" >> "$log" 2>&1; then
    skip_step "$name" "$(tail -n 1 "$log")"
    return
  fi
  timeout "$(left)" tests/debian/run.sh "$1" tests/debian/inside.sh "$2" 2>&1 | tee "$log" | grep -vE '^\[|^--|^ *$' | tail -n 200 |
    sed 's/^/   /' || true
  if cut "$name"; then return; fi
  take_log "$name" "$log" || true
  [ "$2" = python ] || swap_directories "$1"
}

# take_log STEP LOG: names and counts what the log of a script in tests/debian tells: lines `FAILED: NAME` and `skipped: WHY`, the list
# below `FAILED:` of a deploy/test.sh inside, and the last line of counts. True if nothing failed
take_log() {
  local step=$1 log=$2 good bad skip line told=0
  fails "$step" "$log" < <(awk '
    /^FAILED: ./ { print substr($0, 9) }
    /^$/ { list = 0 }
    list { sub(/^ +/, ""); print }
    /^FAILED:$/ { list = 1 }' "$log")
  if ! read -r good bad skip < <(sed -nE 's/^([0-9]+) passed, ([0-9]+) failed, ([0-9]+) skipped$/\1 \2 \3/p' "$log" | tail -n 1); then
    good=0 bad=1 skip=0
    fail "$step" 'it did not get to its end' "$log"
  fi
  while IFS= read -r line; do
    skip "$step" '' "$line"
    told=$((told + 1))
  done < <(sed -n 's/^skipped: //p' "$log")
  [ "$told" -ge "$skip" ] || skip "$step" "$((skip - told)) tests" "each has its reason in ${log#"$root/"}" $((skip - told))
  count "$step" "$good" "$bad" "$skip" "$log"
  [ "$bad" = 0 ]
}

# swap_directories RELEASE: this system's RocksDB and that Debian's take turns on one disk directory
swap_directories() {
  local test=RocksExchangeTest.ADirectoryGoesFromOneReleaseToAnotherAndBack program=build/release/tests/node/kv_rocks_disk_test
  local there log=$logs/debian-$1-exchange.log
  build release kv_rocks_disk_test || return 0
  there=$(tests/debian/run.sh --root "$1")/exchange
  rm -rf "$there"
  # shellcheck disable=SC2317  # check calls it
  exchange() {
    local turn
    for turn in 1 2 3; do
      echo "turn $turn: here"
      env KV_EXCHANGE_DIR="$there" "$program" --gtest_filter="$test" || return 1
      echo "turn $turn: Debian $1"
      tests/debian/run.sh "$1" env KV_EXCHANGE_DIR=/exchange "$program" --gtest_filter="$test" || return 1
    done
    env KV_EXCHANGE_DIR="$there" "$program" --gtest_filter="$test"
  }
  check "debian $1 exchange" exchange "$1"
}

# packages_of RELEASE: built in that Debian (here, if this is one), then installed in fresh copies of a bare one
packages_of() {
  local release=$1 name="packages $1" log=$logs/packages-$1.log debs part
  local bare=$root/build/debian/bare try=$root/build/debian/try
  begin "packages: Debian $1"
  if cut "$name"; then return; fi
  if ! deploy/install-dependencies.sh --debian > "$log" 2>&1 || ! KV_DEBIAN_ROOTS=$bare tests/debian/run.sh --check "$release" >> "$log" 2>&1; then
    skip_step "$name" "$(tail -n 1 "$log")"
    return
  fi
  local builder=(tests/debian/run.sh "$release") from
  from=$(tests/debian/run.sh --root "$release")/kvstore/build
  if [ "$this_system" = "debian$release" ]; then builder=() from=$root/build; fi
  bare=$(KV_DEBIAN_ROOTS=$bare tests/debian/run.sh --root "$release")
  debs=$from/packages
  for part in build install python container; do
    log=$logs/packages-$release-$part.log
    if cut "$name $part"; then return; fi
    if [ "$part" = build ]; then
      timeout "$(left)" "${builder[@]}" tests/debian/inside.sh packages > "$log" 2>&1 || true
    else
      if [ "$part" = python ] && [ ! -d "$from/wheels" ]; then continue; fi  # the build has said why
      rm -rf "$try"
      mkdir -p "$try"
      cp -a "$bare" "$try/"
      mkdir -p "$try/${bare##*/}/kvstore/build"
      cp -r "$debs" "$try/${bare##*/}/kvstore/build/packages"
      cp -r "$debs" "$try/${bare##*/}/packages"
      [ ! -d "$from/wheels" ] || cp -r "$from/wheels" "$try/${bare##*/}/kvstore/build/wheels"
      KV_DEBIAN_ROOTS=$try timeout "$(left)" tests/debian/run.sh "$release" tests/debian/packages.sh "$part" > "$log" 2>&1 || true
    fi
    grep -E '^(passed|FAILED): ' "$log" | sed 's/^/   /' || true
    if take_log "$name $part" "$log"; then continue; fi
    tail -n 60 "$log"
    if [ "$part" = build ]; then return; fi
  done
  rm -rf "$try"
}

step_packages12() { packages_of 12; }
step_packages13() { packages_of 13; }
step_debian12() { in_debian 12 commands; }
step_debian13() { in_debian 13 commands; }
step_debian13_python() { in_debian 13 python; }
