#!/usr/bin/env bash
# What tests/debian/run.sh is asked to run in a bare Debian, with the packages for it in build/packages: the last line is
# 'N passed, N failed, N skipped'. Nothing else of the tree is used than docs and container file.
#
#   tests/debian/packages.sh install     docs/install.md from the packages on, line by line; other clients; upgrade, removal, purge
#   tests/debian/packages.sh python      the wheel in build/wheels against the packaged node
#   tests/debian/packages.sh container   what the second stage of deploy/kubernetes/Containerfile runs, with the packages in /packages
#
# There is no systemd in a chroot. A stand-in for systemctl does what the unit says: ExecStart as its user, in its
# directories, with no capability; SIGTERM at a stop. So a start, a restart and a stop are the packages' own doing. Sandboxing is not.
set -euo pipefail
cd "$(dirname "$0")/../.."
export DEBIAN_FRONTEND=noninteractive
# This root is thrown away: no package has to be safe on its disk.
echo force-unsafe-io > /etc/dpkg/dpkg.cfg.d/unsafe-io
passed=0 failed=0 skipped=0
unit=/usr/lib/systemd/system/kvstore-node.service
config=/etc/kvstore/kvstore-node.toml
scratch=$(mktemp -d)
chmod 755 "$scratch"

# check NAME COMMAND...: one thing that passes or fails
check() {
  local name=$1 code=0
  shift
  set +e  # `|| code=$?` would turn -e off in all that is called
  (set -e; "$@") > "$scratch/log" 2>&1
  code=$?
  set -e
  if [ "$code" = 0 ]; then
    passed=$((passed + 1))
    printf 'passed: %s\n' "$name"
  else
    failed=$((failed + 1))
    tail -n 60 "$scratch/log"
    printf 'FAILED: %s\n' "$name"
  fi
}

end() {
  printf '%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
  [ "$failed" = 0 ]
}

apt() { apt-get -q -y -o Acquire::Retries=2 "$@" < /dev/null; }

stand_in() {
  [ -e /run/systemd/system ] || mkdir -p /run/systemd/system
  cat > /usr/local/sbin/systemctl << 'END'
#!/bin/bash
echo "$*" >> /var/log/systemctl.log
unit=/usr/lib/systemd/system/kvstore-node.service pid=/run/stand-in.pid
action='' ours=no
for word in "$@"; do
  case $word in
    -*) ;;
    kvstore-node | kvstore-node.service) ours=yes ;;
    *) [ -n "$action" ] || action=$word ;;
  esac
done
value() { sed -n "s/^$1=//p" "$unit" | tail -n 1; }
runs() { [ -e $pid ] && kill -0 "$(cat $pid)" 2> /dev/null; }
as_the_unit() {
  setpriv --reuid="$(value User)" --regid="$(value Group)" --init-groups --no-new-privs --bounding-set=-all --inh-caps=-all \
    env -i PATH="$PATH" LANG=C.UTF-8 KVSTORE_NODE_CAPACITY=256MiB bash -c "umask $(value UMask); exec $1"
}
start() {
  install -d -o kvstore -g kvstore -m "$(value RuntimeDirectoryMode)" "/run/$(value RuntimeDirectory)"
  [ -d "/var/lib/$(value StateDirectory)" ] ||
    install -d -o kvstore -g kvstore -m "$(value StateDirectoryMode)" "/var/lib/$(value StateDirectory)"
  (
    # Nobody who waits for the end of a pipe shall wait for the node.
    exec < /dev/null > /var/log/kvstore-node.log 2>&1
    for fd in /proc/self/fd/*; do fd=${fd##*/}; [ "$fd" -le 2 ] || [ "$fd" = 255 ] || eval "exec $fd>&-"; done
    as_the_unit "$(value ExecStart)"
    echo $? > /run/stand-in.status
  ) &
  for _ in $(seq 100); do pgrep_node > $pid && [ -s $pid ] && break; sleep 0.1; done
}
pgrep_node() {
  for each in /proc/[0-9]*; do
    [ "$(readlink "$each/exe" 2> /dev/null)" = /usr/bin/kvstore-node ] && basename "$each" && return
  done
}
stop() {
  runs || return 0
  kill -TERM "$(cat $pid)"
  for _ in $(seq 600); do runs || break; sleep 0.1; done
  rm -f $pid
  rm -rf /run/kvstore
}
case $action in
  is-enabled) echo enabled; exit 0 ;;
  preset | enable | disable) [ $ours = no ] || exec /usr/bin/systemctl "$@" ;;  # links in /etc, for which nothing has to run
  is-active) runs ;;
  start | reload-or-restart | try-restart | restart | stop)
    [ $ours = yes ] || exit 0
    case $action in start) runs || start ;; stop) stop ;; *) stop; start ;; esac ;;
  *) exit 0 ;;
esac
END
  chmod 755 /usr/local/sbin/systemctl
  # apt gives maintainer scripts a PATH of its own.
  echo "DPkg::Path \"$PATH\";" > /etc/apt/apt.conf.d/99stand-in
}

did() { grep -qE "(^| )$1 (.* )?kvstore-node(\.service)?( |$)" /var/log/systemctl.log; }
forget() { : > /var/log/systemctl.log; }
waits() { kvstorectl ping --wait 60s --count 1; }
# Until what lies on disk is known again: a program that asked before would store anew what it did not find.
waits_for_disk() {
  waits
  for _ in $(seq 300); do
    # The log's line: before it was opened, a disk is not loading either.
    if grep -q 'blocks of earlier starts are there again' /var/log/kvstore-node.log; then return; fi
    sleep 0.1
  done
  echo 'the disk is not loaded'
  return 1
}

# What is on disk alone is found; the put that follows brings it to memory, and counts as stored.
finds_all() {
  local said
  said=$(/tmp/first_hit/build/first_hit_c)
  echo "$said"
  [[ $said == '4 of 4 blocks were cached, '* ]]
}

# docs/install.md from the packages on. What stands behind '#' is what the line must print.
lines_of_the_page() {
  local line promised printed count=0
  awk '/^## / { exit } /^    / { print substr($0, 5) }' docs/install.md > "$scratch/lines"
  [ "$(wc -l < "$scratch/lines")" -lt 10 ] || { echo 'docs/install.md promises fewer than ten'; return 1; }
  grep -qx 'deploy/package.sh' "$scratch/lines" || { echo 'docs/install.md builds no packages'; return 1; }
  while IFS= read -r line; do
    [ "$line" != deploy/package.sh ] || continue
    count=$((count + 1))
    echo "+ $line"
    printed=$(bash -euc "${line%%  \#*}" < /dev/null 2>&1) || { echo "$printed"; return 1; }
    echo "$printed" | tail -n 5
    case $line in
      *'  # '*)
        promised=${line##*\# }
        [ "$printed" = "$promised" ] || { echo "promised was: $promised"; return 1; } ;;
    esac
  done < "$scratch/lines"
  [ "$count" -ge 5 ]
}

# twice COMMAND...: the program run twice stores, then finds
twice() {
  local first second
  first=$("$@")
  second=$("$@")
  printf '%s\n%s\n' "$first" "$second"
  [ "$first" = '0 of 4 blocks were cached, 4 stored' ] && [ "$second" = '4 of 4 blocks were cached, 0 stored' ]
}

by_pkg_config() {
  # shellcheck disable=SC2046  # words
  cc -Wall -Werror /tmp/first_hit/first_hit.c $(pkg-config --cflags --libs kvstore) -o "$scratch/by_pkg_config"
  [ "$("$scratch/by_pkg_config")" = '4 of 4 blocks were cached, 0 stored' ]
  # shellcheck disable=SC2046
  c++ -std=c++20 /tmp/first_hit/first_hit.cc $(pkg-config --cflags --libs kvstore-client) -o "$scratch/cxx_by_pkg_config"
  [ "$("$scratch/cxx_by_pkg_config")" = '4 of 4 blocks were cached, 0 stored' ]
}

the_unit() {
  local user
  user=$(getent passwd kvstore) || { echo 'there is no user'; return 1; }
  echo "$user"
  [ "$(stat -c %U "/proc/$(cat /run/stand-in.pid)")" = kvstore ]
  grep -qx 'ExecStart=/usr/bin/kvstore-node --config /etc/kvstore/kvstore-node.toml' $unit
  dpkg-query -W -f '${Conffiles}' kvstore-node | grep -q "$config"
  did start
  [ -e /etc/systemd/system/multi-user.target.wants/kvstore-node.service ] || { echo 'it does not start with the machine'; return 1; }
}

the_pages() {
  local file
  for file in man8/kvstore-node.8 man8/kvstore-node-disk-verify.8 man1/kvstorectl.1 man1/kvstorectl-cluster-drain.1 man1/kvstore-bench-run.1 man1/kvstore-policies.1; do
    zcat "/usr/share/man/$file.gz" | grep -q '^\.SH OPTIONS' || { echo "$file"; return 1; }
  done
  for file in kvstore-node kvstorectl kvstore-bench kvstore-policies; do
    test -s "/usr/share/zsh/vendor-completions/_$file"
    bash -n "/usr/share/bash-completion/completions/$file"
  done
}

the_modules() {
  apt install ./build/packages/kvstore-rdma_*.deb
  kvstorectl doctor --rdma > "$scratch/doctor" 2>&1 || true  # no device here
  cat "$scratch/doctor"
  if grep -q 'install kvstore.s module' "$scratch/doctor"; then return 1; fi
}

# One version more, by hand: the same files under a later version.
next_version() {
  local file folder
  mkdir -p "$scratch/next"
  for file in build/packages/*.deb; do
    case $file in *-dbgsym_*) continue ;; esac
    folder=$scratch/unpacked
    rm -rf "$folder"
    dpkg-deb -R "$file" "$folder"
    sed -i -E "s/^Version: (.*)/Version: \1+1/; s/\(= ([0-9][^)]*)\)/(= \1+1)/g" "$folder/DEBIAN/control"
    dpkg-deb -b "$folder" "$scratch/next/$(basename "$file" | sed 's/_/+1_/')" > /dev/null
  done
}

# An edited configuration, what lies on disk and the user are there afterwards, and the node was restarted.
upgrade() {
  local before uid
  printf '\ndisk-path = "/var/lib/kvstore/disk"\ndisk-capacity = "1GiB"\n' >> $config
  systemctl restart kvstore-node
  waits_for_disk
  /tmp/first_hit/build/first_hit_c  # the restart has lost what was in memory: it had no disk yet
  before=$(cat /run/stand-in.pid) uid=$(id -u kvstore)
  next_version
  forget
  apt install "$scratch"/next/{kvstore-node,kvstore-client,libkvstore1,libkvstore-dev,kvstore-rdma}*.deb
  did restart || { cat /var/log/systemctl.log; echo 'not restarted'; return 1; }
  waits_for_disk
  [ "$(cat /run/stand-in.pid)" != "$before" ]
  [ "$(id -u kvstore)" = "$uid" ]
  grep -q '^disk-capacity' $config
  dpkg-query -W -f '${Version}\n' kvstore-node | grep -q '+1$'
  finds_all
}

removal() {
  forget
  apt remove kvstore-node
  did stop || { cat /var/log/systemctl.log; echo 'not stopped'; return 1; }
  [ ! -e /usr/bin/kvstore-node ]
  [ ! -e /run/stand-in.pid ]
  [ -s $config ]
  [ -d /var/lib/kvstore/disk ]
  id kvstore
}

back() {
  apt install "$scratch"/next/kvstore-node*.deb
  waits_for_disk
  finds_all
}

purge() {
  local left
  apt purge kvstore-node kvstore-client libkvstore1 libkvstore-dev kvstore-rdma
  for left in /etc/kvstore /var/lib/kvstore /usr/include/kvstore /usr/lib/*/cmake/kvstore /usr/lib/*/*kv* \
    /etc/systemd/system/*/kvstore-node.service; do
    [ ! -e "$left" ] || { echo "$left is left"; return 1; }
  done
  if getent passwd kvstore || getent group kvstore; then return 1; fi
  if dpkg-query -W -f '${Package} ${db:Status-Status}\n' '*kvstore*' 2> /dev/null | grep -v not-installed; then return 1; fi
}

case ${1:-} in
  install)
    apt update > /dev/null
    stand_in
    check 'docs/install.md, line by line, to the first hit in C' lines_of_the_page
    check 'the first hit in C++' twice /tmp/first_hit/build/first_hit_cxx
    check 'both by pkg-config' by_pkg_config
    check 'the service runs as its user and starts with the machine' the_unit
    check 'man pages and completions' the_pages
    check 'kvstorectl doctor finds nothing' kvstorectl doctor
    check 'the module for RDMA is found where it is installed' the_modules
    check 'an upgrade restarts the node and keeps configuration, blocks and user' upgrade
    check 'a removal keeps configuration, blocks and user' removal
    check 'installed again, it finds its blocks' back
    check 'a purge leaves nothing' purge
    ;;
  python)
    apt update > /dev/null
    stand_in
    check 'install the node and Python' apt install ./build/packages/kvstore-{node,client}_*.deb python3-venv
    check 'install the wheel' bash -euc 'python3 -m venv /tmp/venv && /tmp/venv/bin/pip install -q build/wheels/kvstore-*.whl'
    waits
    awk '/^## From Python/ { here = 1 } here && /^```$/ { exit } in_code; here && /^```python$/ { in_code = 1 }' README.md |
      sed 's|unix:///tmp/kvstore.sock|unix:///run/kvstore/kvstore.sock|' > "$scratch/ten_lines.py"
    check "the README's ten lines" twice /tmp/venv/bin/python "$scratch/ten_lines.py"
    ;;
  container)
    # Of the last stage: RUN lines, each in one piece.
    awk '/^FROM/ { n = 0 } /^RUN / { line = substr($0, 5); while (line ~ /\\$/) { sub(/\\$/, "", line); getline more; line = line more } run[n++] = line }
      END { for (i = 0; i < n; ++i) print run[i] }' deploy/kubernetes/Containerfile > "$scratch/steps"
    [ "$(wc -l < "$scratch/steps")" -ge 2 ] || { echo 'the container file runs nothing'; exit 1; }
    while IFS= read -r line; do check "RUN ${line:0:60}..." sh -c "$line" < /dev/null; done < "$scratch/steps"
    user=$(sed -nE 's/^USER ([0-9]+):[0-9]+$/\1/p' deploy/kubernetes/Containerfile)
    entry=$(sed -nE 's/^ENTRYPOINT \["(.*)"\]$/\1/p' deploy/kubernetes/Containerfile)
    as_user=(setpriv --reuid="$user" --regid="$user" --clear-groups --no-new-privs --bounding-set=-all --inh-caps=-all)
    "${as_user[@]}" "$entry" --listen unix:///run/kvstore/kvstore.sock --admin none --capacity 64MiB > "$scratch/node.log" 2>&1 &
    pid=$!
    answers() { "${as_user[@]}" kvstorectl ping --wait 30s --count 1 --endpoint unix:///run/kvstore/kvstore.sock || { cat "$scratch/node.log"; return 1; }; }
    check 'its node answers kvstorectl inside it' answers
    kill -TERM "$pid"
    code=0
    wait "$pid" || code=$?
    check "and ends with 0 at SIGTERM ($code)" test "$code" = 0
    ;;
  *) echo "packages.sh: 'install', 'python' or 'container'" >&2; exit 2 ;;
esac
end
