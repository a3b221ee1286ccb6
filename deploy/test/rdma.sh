# shellcheck shell=bash disable=SC2154  # deploy/test.sh has the other names
# deploy/test/rdma.sh: clients and nodes on Soft-RoCE devices in a virtual machine. Sourced by deploy/test.sh.

# run_in_vm NAME NET PROGRAM FILTER: a program of tests on that network's devices, counted test by test
run_in_vm() {
  local name=$1 net=$2 devices=rxe0,rxe0 log=$logs/rdma-$1.log good bad test why
  local link=(KV_VERBS_TEST_LATE=rxe9 KV_VERBS_TEST_LATE_ADD="ip link add eth9 type dummy && ip link set eth9 up &&
      ip addr add 10.79.0.1/24 dev eth9 && rdma link add rxe9 type rxe netdev eth9")
  if cut "rdma $name"; then return; fi
  if [ "$net" = pair ]; then
    devices=rxe0,rxe1
    link+=(KV_VERBS_TEST_LINK=eth1 KV_VERBS_TEST_ROUTES="ip route replace 10.77.0.1 dev eth1 src 10.77.0.2 table 102;
      ip route replace 10.77.0.2 dev eth0 src 10.77.0.1 table 101")  # a cut of the link removes this route
  fi
  env "${link[@]}" KV_RDMA_VM_MEMORY="${KV_RDMA_VM_MEMORY:-6144}" KV_VERBS_TEST_DEVICES=$devices \
    KV_VERBS_MODULE="$root/build/release/transport/ibverbs/libkvstore_verbs.so" \
    tests/rdma_vm/run.sh --net "$net" --timeout "$(left 900)" "build/release/tests/$3" --gtest_filter="$4" \
    > "$log" 2>&1 || grep -vE '^\[ +(OK|RUN) ' "$log" | tail -n 200
  good=$(grep -cE '^\[ +OK \]' "$log" || true)
  bad=$(grep -cE '^\[  FAILED  \].* \([0-9]+ ms\)$' "$log" || true)
  fails "rdma $name" "$log" < <(sed -nE 's/^\[  FAILED  \] ([^ ,]+).* \([0-9]+ ms\)$/\1/p' "$log")
  # GoogleTest puts the reason on the line after "FILE:LINE: Skipped".
  while IFS=$'\t' read -r test why; do skip "rdma $name" "$test" "$why"; done < <(awk '
    is_reason { why = $0; is_reason = 0 }
    /: Skipped$/ { is_reason = 1 }
    /^\[ RUN/ { why = "" }
    /^\[  SKIPPED \].* \([0-9]+ ms\)$/ { print $4 "\t" (why == "" ? "without a reason" : why) }' "$log")
  # Without a closing line the program did not get to its end.
  if ! grep -q '^\[  PASSED  \]' "$log" && ! cut "rdma $name"; then
    bad=$((bad + 1))
    fail "rdma $name" 'it did not get to its end' "$log"
  fi
  count "rdma $name" "$good" "$bad" "$(grep -cE '^\[  SKIPPED \].* \([0-9]+ ms\)$' "$log" || true)"
}

# script_in_vm NAME PROGRAM...: tests/rdma_vm/NAME.sh with these programs; its lines "passed: " and "FAILED: " are counted
script_in_vm() {
  local name=$1 log=$logs/rdma-$1.log status=0 bad
  shift
  if cut "rdma $name"; then return; fi
  KV_VERBS_MODULE=$root/build/release/transport/ibverbs/libkvstore_verbs.so \
    tests/rdma_vm/run.sh --timeout "$(left 900)" "tests/rdma_vm/$name.sh" "$@" > "$log" 2>&1 || status=$?
  [ "$status" = 0 ] || tail -n 100 "$log"
  bad=$(grep -c '^FAILED: ' "$log" || true)
  fails "rdma $name" "$log" < <(sed -n 's/^FAILED: //p' "$log")
  if [ "$status" != 0 ] && [ "$bad" = 0 ] && ! cut "rdma $name"; then
    bad=1
    fail "rdma $name" "it did not get to its end (exit status $status)" "$log" "$(tail -n 1 "$log")"
  fi
  count "rdma $name" "$(grep -c '^passed: ' "$log" || true)" "$bad" 0
}

# python_in_vm: the package's tests of a GPU's memory that RDMA devices fill and drain, on the simulated GPU; of what --python and --cuda
# have built
python_in_vm() {
  local name='rdma python' python why='' module=$root/build/simulator/90/libkvstore_cuda.so site=$root/build/python/site
  local junit=$logs/rdma-python.xml log=$logs/rdma-python.log
  if cut "$name"; then return; fi
  python=$(python_environment) || why=$python
  [ -d "$site/kvstore" ] || why='there is no package: deploy/test.sh --python builds it'
  [ -f "$module" ] || why='there is no simulated GPU: deploy/test.sh --cuda builds it'
  if [ -n "$why" ]; then
    skip_step "$name" "$why"
    return
  fi
  build release kvstore-node || return 0
  rm -f "$junit"
  env KV_VERBS_TEST_DEVICES=rxe0,rxe0 KV_VERBS_MODULE="$root/build/release/transport/ibverbs/libkvstore_verbs.so" \
    KV_CUDA_MODULE="$module" KV_NODE="$root/build/release/store/node/kvstore-node" PYTHONPATH="$site" PYTHONDONTWRITEBYTECODE=1 \
    tests/rdma_vm/run.sh --timeout "$(left 900)" bash -c 'cd client/python/tests && exec "$@"' - \
    "$python" -m pytest -q -rs -p no:cacheprovider --junitxml="$junit" test_reach_device.py > "$log" 2>&1 || tail -n 120 "$log"
  if take_junit "$name" "$junit" "$log" || cut "$name"; then return; fi
  fail "$name" 'pytest did not get to its end' "$log"
  count "$name" 0 1 0
}

# What each commit runs: emulated, a network takes five minutes or more, and both have the same code above verbs. Only a pair's link can be
# cut.
step_rdma_loop() {
  in_vm_begin || return 0
  run_in_vm loop loop transport/verbs_test '*/device'
  run_in_vm e2e-loop loop e2e/e2e_test "$e2e_filter"
  run_in_vm e2e-link pair e2e/e2e_test '*RdmaLink*'
  python_in_vm
}

step_rdma() {
  in_vm_begin || return 0
  run_in_vm loop loop transport/verbs_test '*/device'
  run_in_vm pair pair transport/verbs_test '*Conformance*/device:*Message*/device:*Model*/device:*Mover*/device:*Process*/device'
  run_in_vm e2e-loop loop e2e/e2e_test "$e2e_filter"
  run_in_vm e2e-pair pair e2e/e2e_test "$e2e_filter:*RdmaLink*"
  python_in_vm
}

e2e_filter='*/verbs*:*RdmaDevice*:DeviceMemoryE2eTest.BlocksReach*'

# in_vm_begin: builds, and runs the tools in the virtual machine; or counts the step as skipped or failed, and fails
in_vm_begin() {
  begin "rdma: Soft-RoCE in a virtual machine"
  local log=$logs/rdma-vm.log
  if ! deploy/install-dependencies.sh --rdma > "$log" 2>&1 || ! tests/rdma_vm/run.sh --check >> "$log" 2>&1; then
    skip_step rdma "$(tail -n 1 "$log")"
    return 1
  fi
  build release verbs_test e2e_test numa_client || return 1
  if [ ! -e build/release/transport/ibverbs/libkvstore_verbs.so ]; then
    skip_step rdma 'the module was not built, libibverbs-dev is not installed'
    return 1
  fi
  script_in_vm doctor build/release/client/tools/kvstorectl
  KV_RDMA_VM_NUMA=2 script_in_vm numa build/release/store/node/kvstore-node build/release/client/tools/kvstorectl \
    build/release/tests/rdma_vm/numa_client build/release/client/tools/kvstore-bench
}
