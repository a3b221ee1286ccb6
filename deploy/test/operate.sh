# shellcheck shell=bash disable=SC2154  # deploy/test.sh has the other names
# deploy/test/operate.sh: what people operate a node by: alerts, dashboards, the status page, the documentation, Kubernetes. Sourced by
# deploy/test.sh.

# has_debian_python STEP MODULES: Debian's own Python and its packages: the tests need nothing else, and pip may find nothing. What is
# absent besides, they say themselves. Where one of MODULES is absent the step is counted as skipped
debian_python=/usr/bin/python3
has_debian_python() {
  deploy/install-dependencies.sh "--$1" > "$logs/$1-install.log" 2>&1 || tail -n 5 "$logs/$1-install.log"
  if "$debian_python" -c "import $2" > /dev/null 2>&1; then return 0; fi
  skip_step "$1" "not all of Python's $2 are there: deploy/install-dependencies.sh --$1"
  return 1
}

step_observe() {
  begin 'observe: alerts and dashboards'
  if cut observe; then return; fi
  has_debian_python observe pytest || return 0
  build release kvstore-node kvstorectl kvstore-bench kv_faulty_disk || return 0
  pytest_step observe tests/observe "$root/tests/observe" "$debian_python" 600
  sed -n '/ queries of dashboards: /s/^/   /p' "$logs/observe.log"
}

step_page() {
  begin 'page: the status page in a browser'
  if cut page; then return; fi
  has_debian_python page pytest || return 0
  build release kvstore-node kvstore_c || return 0
  pytest_step page tests/page "$root/tests/page" "$debian_python" 400
  sed -n '/^page: /s/^/   /p' "$logs/page.log"
}

# What cannot be run here is in the log, with the reason.
step_docs() {
  begin 'docs: the commands of README.md and docs/'
  if cut docs; then return; fi
  local folder=${KV_BUILD:-build/release} log=$logs/docs.log good bad skip
  if [ "$folder" = build/release ]; then build release kvstore-node kvstorectl kvstore-bench kvstore_c || return 0; fi
  KV_BUILD=$folder timeout "$(left 300)" tests/docs/run_docs.py > "$log" 2>&1 || sed -n '/^FAILED/,/^passed/p' "$log"
  if ! read -r good bad skip < <(sed -n 's/^docs: \([0-9]*\) passed, \([0-9]*\) failed, \([0-9]*\) skipped$/\1 \2 \3/p' "$log"); then
    tail -n 20 "$log"
    good=0 bad=1 skip=0
    fail docs 'it did not get to its end' "$log"
  else
    # After the line of a page that failed comes its output, with the block and the statement that failed.
    fails docs "$log" < <(awk '
      /^FAILED / { if (page != "") print page; page = substr($0, 10) }
      /^== failed/ && page != "" { sub(/^== failed:? /, ""); print (index($0, page_name()) == 1 ? "" : page_name() ": ") $0; page = "" }
      END { if (page != "") print page }
      function page_name(  name) { name = page; sub(/: exit status .*/, "", name); return name }' "$log")
  fi
  [ "$skip" = 0 ] || skip docs "$skip blocks or statements" "each has its reason in ${log#"$root/"}" "$skip"
  count docs "$good" "$bad" "$skip" "$log"
}

step_kubernetes() {
  begin 'kubernetes: what deploy/kubernetes says'
  if cut kubernetes; then return; fi
  has_debian_python kubernetes pytest,yaml || return 0
  build release kvstore-node kvstorectl || return 0
  pytest_step kubernetes tests/kubernetes "$root/tests/kubernetes" "$debian_python" 300
}
