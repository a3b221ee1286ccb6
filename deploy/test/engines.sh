# shellcheck shell=bash disable=SC2154  # deploy/test.sh has the other names
# deploy/test/engines.sh: real engines with the Python package, and the bugs planted there. Sourced by deploy/test.sh.

# engine_environment ENGINE LIST PYTHON: prints an interpreter that has the engine, PYTHON if that is not empty; or says why there is
# none, and fails
engine_environment() {
  local engine=$1 list=client/python/tests/engines/$2 folder=$root/build/engines/$1-venv python=$3
  if [ -n "$python" ]; then
    "$python" -c "import $engine, pytest" > /dev/null 2>&1 || { echo "$python has no $engine or no pytest"; return 1; }
    echo "$python"
    return
  fi
  python=$(command -v python3.11) || { echo "there is no python3.11"; return 1; }
  [ "$(uname -m)" = x86_64 ] || { echo "the list is for x86-64"; return 1; }
  if ! cmp -s "$list" "$folder/installed"; then
    rm -rf "$folder"
    "$python" -m venv "$folder" > "$logs/$engine-venv.log" 2>&1 || { echo "no virtual environment: apt-get install python3-venv"; return 1; }
    timeout "$(left 900)" "$folder/bin/python" -m pip install -q --disable-pip-version-check --retries 1 --timeout 15 --no-deps \
      --require-hashes -r "$list" >> "$logs/$engine-venv.log" 2>&1 || { echo "pip finds no packages"; return 1; }
    cp "$list" "$folder/installed"
  fi
  echo "$folder/bin/python"
}

# engine_step ENGINE LIST PYTHON: engines pin different releases of the same packages, so each has an environment of its own
engine_step() {
  local engine=$1 python
  begin "engines: the package and $engine"
  if cut "engines $engine"; then return; fi
  if ! python=$(engine_environment "$@"); then
    skip_step "engines $engine" "$python"
    return
  fi
  build release kvstore-node || return 0
  local site=$root/build/engines/$engine-site tools=$root/build/engines/tools
  # The package's build tools are not the engine's dependencies: a folder of their own.
  if ! { [ -d "$tools" ] || timeout "$(left 300)" "$python" -m pip install -q --disable-pip-version-check \
    --target "$tools" nanobind scikit-build-core; } > "$logs/engines-tools.log" 2>&1; then
    rm -rf "$tools"
    skip_step "engines $engine" 'pip finds no packages'
    return
  fi
  PYTHONPATH=$tools install_package "engines-$engine" "$site" "$python" || return 0
  local other others=()
  for other in vllm sglang lmcache; do
    [ "$other" = "$engine" ] || others+=("--ignore-glob=*/test_${other}_*" "--ignore-glob=*/test_identity_${other}*")
  done
  pytest_step "engines $engine" client/python/tests/engines "$site" "$python" 1800 "${others[@]}"
  plant_in_engine "$engine" "$site" "$python"
}

step_engines() {
  engine_step vllm requirements.txt "${KV_ENGINES_PYTHON:-}"
  engine_step sglang requirements-sglang.txt "${KV_SGLANG_PYTHON:-}"
  engine_step lmcache requirements-lmcache.txt "${KV_LMCACHE_PYTHON:-}"
}

# plant_in_engine ENGINE SITE PYTHON: plants that engine's bugs of tests/planted/engines one by one in a copy of the package in SITE. Their
# headers are those of tests/planted/run.sh without Build; Tests is an expression of pytest -k, and Engine names the engine, vllm unless
# it is there. The tests have passed before, without the bug. With KV_CUDA_MODULE those whose header has Device: cuda, without it the
# others.
plant_in_engine() {
  local engine=$1 site=$2 python=$3 copy=$root/build/engines/planted patch name log status planted=0 caught=0
  for patch in "$root"/tests/planted/engines/*.patch; do
    name=$(sed -n 's/^Engine: //p' "$patch")
    [ "${name:-vllm}" = "$engine" ] || continue
    # Those of a GPU's pages need one: step_cuda.
    [ "$(sed -n 's/^Device: //p' "$patch")" = "${KV_CUDA_MODULE:+cuda}" ] || continue
    if cut "engines $engine planted"; then return; fi
    name=$(basename "$patch" .patch) log=$logs/engines-planted-$(basename "$patch" .patch).log status=0
    planted=$((planted + 1))
    rm -rf "$copy"
    mkdir -p "$copy"
    cp -r "$site/kvstore" "$copy/"
    # The patches are of client/python/kvstore.
    if ! patch -p3 -s --no-backup-if-mismatch -d "$copy" < "$patch" > "$log" 2>&1; then
      printf '   MISSED  %s: the patch does not apply any more\n' "$name"
      fail "engines $engine planted" "$name: the patch does not apply any more" "$log"
      continue
    fi
    (cd client/python/tests && PYTHONPATH=$copy KV_NODE=$root/build/release/store/node/kvstore-node HF_HUB_OFFLINE=1 timeout "$(left 300)" \
      "$python" -m pytest -q -p no:cacheprovider -k "$(sed -n 's/^Tests: //p' "$patch")" "$root/client/python/tests/engines") >> "$log" 2>&1 ||
      status=$?
    if [ "$status" = 1 ]; then  # of pytest: tests ran, and some failed
      caught=$((caught + 1))
      printf '   caught  %s\n' "$name"
    else
      printf '   MISSED  %s: %s [pytest: %s]\n' "$name" "$(sed -n 's/^What: //p' "$patch")" "$status"
      fail "engines $engine planted" "$name: $(sed -n 's/^What: //p' "$patch")" "$log"
    fi
  done
  count "engines $engine planted" "$caught" $((planted - caught)) 0
}
