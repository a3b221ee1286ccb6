# shellcheck shell=bash disable=SC2154  # deploy/test.sh has the other names
# deploy/test/python.sh: the Python package. Sourced by deploy/test.sh.

# python_environment [PYTHON FOLDER]: prints the interpreter that has what the package's tests need, in an environment in FOLDER if needed;
# or says why there is none, and fails
python_environment() {
  local python=${1:-${KV_PYTHON:-python3}} folder=${2:-$root/build/python/venv}
  local needed=(nanobind scikit_build_core numpy pytest hypothesis)
  command -v "$python" > /dev/null || { echo "there is no $python"; return 1; }
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "$python is older than 3.10"; return 1; }
  local include
  include=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
  [ -f "$include/Python.h" ] || { echo "$python has no headers: apt-get install python3-dev"; return 1; }
  if [[ -n "${1:-${KV_PYTHON:-}}" ]] && "$python" -c "import $(IFS=,; echo "${needed[*]}")" 2> /dev/null; then
    echo "$python"
    return
  fi
  "$python" -m venv --system-site-packages "$folder" > "$logs/python-venv.log" 2>&1 ||
    { echo "no virtual environment: apt-get install python3-venv"; return 1; }
  if ! "$folder/bin/python" -c "import $(IFS=,; echo "${needed[*]}")" 2> /dev/null; then
    timeout "$(left 300)" "$folder/bin/python" -m pip install -q --disable-pip-version-check --retries 1 --timeout 15 \
      "${needed[@]//_/-}" mypy ruff >> "$logs/python-venv.log" 2>&1 || { echo "pip finds no packages"; return 1; }
  fi
  echo "$folder/bin/python"
}

# newer_python VERSION: prints the newest interpreter on PATH or of pyenv that is newer than VERSION, or KV_NEWER_PYTHON; or fails
newer_python() {
  local python version
  for python in ${KV_NEWER_PYTHON:-python3.14 python3.13 python3.12 "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.1[2-9]*/bin/python3.1?}; do
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2> /dev/null) || continue
    [ "$version" = "$1" ] || printf '%s %s\n%s\n' "$version" "$python" "$1"
  done | sort -V | tail -n 1 | grep ' ' | cut -d ' ' -f 2
}

# install_package STEP SITE PYTHON [OPTION...]: builds the package with pip's further options into SITE, which is no environment: that may
# be a person's own. On failure shows the end of the log and counts one failure
install_package() {
  local step=$1 site=$2 python=$3
  shift 3
  rm -rf "$site"
  if timeout "$(left)" "$python" -m pip install -q --disable-pip-version-check --no-build-isolation --no-deps --target "$site" "$@" \
    client/python > "$logs/$step-build.log" 2>&1; then
    printf '   built in %d s for %s\n' $((SECONDS - step_began)) "$("$python" --version)"
    return 0
  fi
  if cut "$step build"; then return 1; fi
  tail -n 40 "$logs/$step-build.log"
  fail "$step build" '' "$logs/$step-build.log"
  count "$step build" 0 1 0
  return 1
}

# pytest_step NAME FOLDER SITE PYTHON SECONDS [ARGUMENT...]: runs and counts the tests of FOLDER with the package in SITE. KV_PRELOAD:
# libraries that Python is to load first
pytest_step() {
  local name=$1 folder=$2 site=$3 python=$4 seconds=$5 junit=$logs/${1// /-}.xml log=$logs/${1// /-}.log
  shift 5
  rm -f "$junit"
  # From the tests' folder: from the package's, `python -m` would find the sources, without the extension.
  (cd client/python/tests && PYTHONPATH=$site KV_NODE=$root/build/release/store/node/kvstore-node HF_HUB_OFFLINE=1 \
    timeout "$(left "$seconds")" env ${KV_PRELOAD:+LD_PRELOAD="$KV_PRELOAD"} "$python" -m pytest -q -rs --junitxml="$junit" \
    -p no:cacheprovider "$@" "$root/$folder") > "$log" 2>&1 ||
    tail -n 120 "$log"
  if take_junit "$name" "$junit" "$log" || cut "$name"; then return; fi
  fail "$name" 'pytest did not get to its end' "$log"
  count "$name" 0 1 0
}

step_python() {
  begin 'python: the package'
  if cut python; then return; fi
  local python
  if ! python=$(python_environment); then
    skip_step python "$python"
    return
  fi
  build release kvstore-node kvstorectl || return 0
  local site=$root/build/python/site tool
  install_package python "$site" "$python" || return 0
  pytest_step python client/python/tests "$site" "$python" 1200
  # Beside the package, all that deploy and tests have in Python.
  local tests=../../tests
  local others="../../deploy/grafana ../../deploy/make_pages.py ../../deploy/test/junit.py $tests/observe $tests/kubernetes"
  # Folders with a conftest are looked at one by one: there is one of that name.
  for tool in "mypy" "mypy of deploy and tests" "mypy of page tests" "ruff check" "ruff format --check"; do
    local command=$tool
    case $tool in
      "mypy of deploy"*) command="mypy $others $tests/programs" ;;
      "mypy of page"*) command="mypy $tests/page $tests/programs" ;;
      ruff*) command="$tool . $others $tests/page $tests/programs $tests/models" ;;
    esac
    # shellcheck disable=SC2086  # words
    if "$python" -m ${tool%% *} --version > /dev/null 2>&1; then
      check "python $tool" bash -c "cd client/python && $python -m $command"
    else
      skip_step "python $tool" "${tool%% *} is not installed"
    fi
  done
  step_python_newer
}

# How the interpreter ends its threads differs from version to version.
step_python_newer() {
  begin 'python_newer: the package in a newer Python'
  if cut python_newer; then return; fi
  local python newer
  python=$(python_environment) || { skip_step python_newer "$python"; return; }
  newer=$(newer_python "$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')") ||
    { skip_step python_newer "there is no Python newer than $("$python" --version): KV_NEWER_PYTHON names one"; return; }
  newer=$(python_environment "$newer" "$root/build/python/venv-newer") || { skip_step python_newer "$newer"; return; }
  build release kvstore-node || return 0
  local site=$root/build/python/newer-site
  install_package python_newer "$site" "$newer" || return 0
  pytest_step python_newer client/python/tests "$site" "$newer" 600 -k 'interpreter_end or processes'
}

# The interpreter is not instrumented: the runtime is loaded before it, and what Python keeps to its end is no leak of ours. Memory is
# not measured: the sanitizer keeps what was freed.
step_python_asan() {
  begin 'python_asan: the package under AddressSanitizer'
  if cut python_asan; then return; fi
  local python clang=clang-16 runtime
  command -v "$clang" > /dev/null || clang=clang
  runtime=$("$clang" -print-file-name="libclang_rt.asan-$(uname -m).so" 2> /dev/null) || true
  local why=''
  python=$(python_environment) || why=$python
  [ -f "$runtime" ] || why="$clang has no shared runtime of AddressSanitizer"
  if [ -n "$why" ]; then
    skip_step python_asan "$why"
    return
  fi
  build release kvstore-node kvstorectl || return 0
  local site=$root/build/python/asan-site define=-Ccmake.define
  CC=$clang CXX=clang++${clang#clang} install_package python_asan "$site" "$python" -Cbuild-dir="$root/build/python/asan" \
    "$define.KV_SANITIZE=address,undefined" "$define.CMAKE_CXX_FLAGS_RELEASE=-O1 -gline-tables-only" -Cinstall.strip=false || return 0
  KV_PRELOAD="$runtime $("$clang" -print-file-name=libstdc++.so.6)" ASAN_OPTIONS=$ASAN_OPTIONS:detect_leaks=0 \
    pytest_step python_asan client/python/tests "$site" "$python" 2400
}
