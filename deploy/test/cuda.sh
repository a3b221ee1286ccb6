# shellcheck shell=bash disable=SC2154,SC2034  # names of deploy/test.sh and release.sh
# deploy/test/cuda.sh: compiled CUDA kernels in a functional simulator of a GPU. Sourced by deploy/test.sh.

# in_simulator ARCHITECTURE ORDER PROGRAM: the CUDA tests of PROGRAM, on kernels compiled for that compute capability. ORDER says when
# enqueued work is done: `sequence` at once, `lazy` when it is waited for, `random` in between. Races and wild accesses that the
# simulator finds are failures too.
in_simulator() {
  local name=cuda-$1-$2-$3
  local log=$logs/$name.log findings=$logs/$name.findings
  rm -f "$findings"
  env KV_CUDA_MODULE="$root/build/simulator/$1/libkvstore_cuda.so" GPUSIM_ORDER="$2" GPUSIM_DEVICES=2 GPUSIM_REPORT="$findings" \
    timeout "$(left 900)" "build/release/tests/gpu/kv_gpu_$3_test" --gtest_filter='*Cuda*:*ADevice*' > "$log" 2>&1 ||
    { tail -n 40 "$log"; return 1; }
  # The two findings that tests cause on purpose: freeing memory of no device, and copies of memory that is not page-locked.
  ! grep -vE 'cudaFree of what is not allocated|asynchronous copy of pageable memory|^ *$' "$findings" 2> /dev/null
}

step_cuda() {
  begin 'cuda: compiled kernels in a simulator'
  local why='' architecture program run log good=0 bad=0 runs=() pids=() started=()
  [ -n "${KV_CUDA_SIMULATOR:-}" ] || why='KV_CUDA_SIMULATOR names no folder'
  command -v "${NVCC:-nvcc}" > /dev/null || [ -x /usr/local/cuda/bin/nvcc ] || why='there is no nvcc'
  if [ -n "$why" ]; then
    skip_step cuda "$why"
    return
  fi
  if cut cuda; then return; fi
  build release tests || return 0
  # The last -march counts: the emulated processor of tests/rdma_vm, where the module is used too, has not all that this one may have.
  local compiler=$root/build/simulator/compiler
  mkdir -p "$root/build/simulator"
  printf '#!/bin/sh\nexec %s "$@" -march=x86-64-v3\n' "${CXX:-g++}" > "$compiler"
  chmod +x "$compiler"
  for architecture in 90 120; do
    log=$logs/cuda-$architecture-build.log
    if ! CXX=$compiler sh "$KV_CUDA_SIMULATOR/build.sh" "$root" "$root/build/simulator/$architecture" "$architecture" > "$log" 2>&1; then
      tail -n 40 "$log"
      bad=$((bad + 1))
      fail cuda "the simulator's build for $architecture" "$log"
      continue
    fi
    for program in copy_matrix quantise_matrix rotate_matrix compress_matrix verified_matrix cuda_staging differential; do
      runs+=("$architecture sequence $program")
    done
    # Only staging orders its streams itself; the other tests wait after each call.
    runs+=("$architecture lazy cuda_staging" "$architecture random cuda_staging")
  done
  for run in "${runs[@]}"; do
    # shellcheck disable=SC2086  # three words
    together cuda "$run" "$logs/cuda-${run// /-}.log" in_simulator $run
  done
  together_end cuda
  count cuda "$good" "$bad" 0
  in_simulator_from_python
}

# in_simulator_from_python: the package's tests of a GPU's memory, and of vLLM's connector with pages there, on the simulated device
in_simulator_from_python() {
  local python why='' site=$root/build/python/site
  local -x KV_CUDA_MODULE=$root/build/simulator/90/libkvstore_cuda.so GPUSIM_REPORT=$logs/cuda-python.findings
  rm -f "$GPUSIM_REPORT"
  python=$(python_environment) || why=$python
  if [ -n "$why" ]; then
    skip_step 'cuda python' "$why"
  elif install_package 'cuda python' "$site" "$python"; then
    pytest_step 'cuda python' client/python/tests/test_device.py "$site" "$python" 600 "$root/client/python/tests/test_lend_device.py"
  fi
  python=${KV_ENGINES_PYTHON:-$root/build/engines/vllm-venv/bin/python}
  site=$root/build/engines/vllm-site
  if ! "$python" -c 'import vllm, pytest' > /dev/null 2>&1 || [ ! -d "$site/kvstore" ]; then
    skip_step 'cuda vllm' 'there is no environment with vLLM and the package: deploy/test.sh --engines makes it'
  else
    pytest_step 'cuda vllm' client/python/tests/engines/test_vllm_device.py "$site" "$python" 1200
    plant_in_engine vllm "$site" "$python"
  fi
  # The tests free page-locked memory while other streams have work.
  check 'cuda python findings' bash -c "! grep -vE 'host memory unregistered with work still enqueued|^ *\$' '$GPUSIM_REPORT' 2> /dev/null"
}
