#!/usr/bin/env bash
# Creates or updates the virtual environment of the Makefile's targets: a Python with the packages of
# requirements/py310.txt or requirements/py311plus.txt, and this project in editable mode. No root.
#
#   tools/setup_env.sh [ENVIRONMENT]      (default: .venv in the repository)
#   tools/setup_env.sh --find             prints the version and path of the Python, and makes nothing
#
# It takes a Python 3.10 where there is one, for Launchpad and Reverb; else what `python3` is, if that
# is 3.11 to 3.14; else the newest of these that it finds. PYTHON=python3.12, or a path, names one, and
# PYTHON=newest means the newest.
# Exit status: 0 done, 2 no usable interpreter or environment, else that of the install that failed.
set -euo pipefail

HOME=${HOME:-$(unset HOME; printf %s ~)}  # `env -i` has none: then it is that of /etc/passwd, or /
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
cd "$root"
venv=$(realpath -ms -- "${1:-.venv}")
stamp=$venv/.stamp            # names the environment that a finished set-up is for
incomplete=$venv/.incomplete  # exists while a set-up is in progress or was interrupted
inputs=(requirements/py310.txt requirements/py311plus.txt requirements/bootstrap.txt pyproject.toml
  tools/setup_env.sh)
versions=(3.14 3.13 3.12 3.11)  # for which requirements/py311plus.txt is resolved
launchpad=0                   # whether Launchpad and Reverb have builds for this machine
rejected=()                   # interpreters of the right version that cannot be used
trap 'exit 130' INT TERM  # else an interrupted uv would look like one that failed

say() { printf 'set-up: %s\n' "$*"; }
die() { printf 'set-up: %s\n' "$@" >&2; exit 2; }

# ---- finding a Python -----------------------------------------------------------------------

# Run by each candidate, with the versions that are wanted; prints its version, its path and the
# libpython to preload ("-" for none).
# Courier's and Reverb's binaries are linked to libpython3.10.so.1.0. A statically linked
# interpreter (uv's builds) does not load that library, but usually comes with it.
read -r -d '' probe <<'PYTHON' || true
import os, sys
version = "%d.%d" % sys.version_info[:2]
if version not in sys.argv[1:] or sys.implementation.name != "cpython":
    sys.exit("it is not CPython " + " or ".join(sys.argv[1:]))
try:
    import ctypes, ensurepip, ssl, sysconfig, venv
except ImportError as error:
    sys.exit(f"it lacks the standard module {error.name} (on Debian: python{version}-venv)")
name = "libpython3.10.so.1.0"
def mapped():
    with open("/proc/self/maps") as maps:
        return next((line.split(maxsplit=5)[5].strip() for line in maps if name in line), None)
preload = "-" if version != "3.10" or mapped() else None
if preload is None:
    for folder in (os.path.join(sys.base_prefix, "lib"), sysconfig.get_config_var("LIBDIR") or ""):
        if os.path.exists(os.path.join(folder, name)):
            preload = os.path.join(folder, name)
            break
    else:
        try:
            ctypes.CDLL(name)
        except OSError:
            sys.exit(f"it comes without {name} (on Debian: libpython3.10)")
        preload = mapped()
path = os.path.join(sys.base_exec_prefix, "bin", "python" + version)  # not that of an environment
inside = sys.prefix != sys.base_prefix and os.path.exists(path)
print(version, path if inside else sys.executable, preload, sep="\t")
PYTHON

# consider CANDIDATE VERSION...: sets version, python and preload if the candidate is of one of the
# versions; else fails and sets reason. It runs the candidate: pyenv's shims exist even for versions
# that they refuse to start.
consider() {
  local answer candidate=$1
  shift
  reason="it is not a program"
  [[ -x $candidate && ! -d $candidate ]] || return 1
  if answer=$(timeout -k 1 10 "$candidate" -c "$probe" "$@" 2>&1 </dev/null) && [[ $answer == *$'\t'* ]]
  then
    IFS=$'\t' read -r version python preload <<<"${answer##*$'\n'}"
    return 0
  fi
  reason=$(head -n 1 <<<"$answer")
  reason=${reason:-it does not run}
  if [[ $reason != "it is not CPython"* && $candidate == *"$1"* ]]; then
    rejected+=("$candidate: $reason")
  fi
  return 1
}

# find_installed VERSION...: takes the first of the versions that is installed and can be used.
find_installed() {
  local wanted candidate name candidates
  for wanted; do
    candidates=()
    for name in "python$wanted" python3 python; do
      mapfile -t -O "${#candidates[@]}" candidates < <(type -aP "$name" || true)
    done
    shopt -s nullglob
    mapfile -t -O "${#candidates[@]}" candidates < <(
      printf '%s\n' {"${PYENV_ROOT:-$HOME/.pyenv}","$HOME/.pyenv"}/versions/"$wanted".*/bin/python |
        sort -rVu)
    candidates+=({/usr/bin,/usr/local/bin,"$HOME/.local/bin"}/python"$wanted"
      {/opt,/usr/local,/opt/python}/*/bin/python"$wanted"
      "${UV_PYTHON_INSTALL_DIR:-${XDG_DATA_HOME:-$HOME/.local/share}/uv/python}"/cpython-"$wanted"*/bin/python"$wanted")
    shopt -u nullglob
    for candidate in "${candidates[@]}"; do
      consider "$candidate" "$wanted" && return 0
    done
  done
  return 1
}

# get_with_uv: has uv download a Python 3.10, if it is online. Limited to about half a minute.
get_with_uv() {
  local uv found
  uv=$(PATH="$PATH:$HOME/.local/bin:$HOME/.cargo/bin" type -P uv || true)
  [[ -n $uv ]] || return 1
  say "no Python 3.10 to 3.14 is installed; asking uv for one (at most 40 s)"
  UV_PYTHON_INSTALL_BIN=0 timeout -k 1 40 "$uv" python install 3.10 </dev/null >/dev/null 2>&1 \
    || return 1
  found=$(timeout -k 1 10 "$uv" python find --system --no-python-downloads 3.10 2>/dev/null </dev/null) \
    || return 1
  consider "$found" 3.10
}

find_python() {
  if [[ -n $version ]]; then return 0; fi
  if [[ ${PYTHON:-} == python3.* ]]; then  # by the version: the PATH may have pyenv's shim only
    [[ " ${versions[*]} " == *" ${PYTHON#python} "* ]] \
      || die "PYTHON=$PYTHON cannot be used: distrl is for CPython 3.10 to 3.14"
    find_installed "${PYTHON#python}" && return 0
  elif [[ -n ${PYTHON:-} && $PYTHON != newest ]]; then
    consider "$(type -P "$PYTHON" || true)" "${versions[@]}" && return 0
    die "PYTHON=$PYTHON cannot be used: $reason"
  else
    if [[ ${PYTHON:-} != newest ]]; then
      if ((launchpad)) && find_installed 3.10; then return 0; fi
      consider "$(type -P python3 || true)" "${versions[@]}" && return 0
    fi
    find_installed "${versions[@]}" && return 0
    ((launchpad)) && get_with_uv && return 0
  fi
  local lines=("no ${PYTHON:-Python 3.10 to 3.14} was found on the PATH, in pyenv, uv, /usr, /usr/local or /opt.")
  if ((${#rejected[@]})); then lines+=("${rejected[@]/#/  not usable: }"); fi
  die "${lines[@]}" "Install one, then run make again:" \
    "  apt install python3 python3-venv   (Debian, Ubuntu)" \
    "  uv python install 3.12, or pyenv install 3.12" \
    "  or, if it is elsewhere: make ... PYTHON=/path/to/python3"
}

# ---- the environment ------------------------------------------------------------------------

usable() { [[ -x $venv/bin/python ]] && timeout 20 "$venv/bin/python" -c '' </dev/null 2>/dev/null; }

finished_here() { grep -qxsF "$venv" "$stamp"; }

up_to_date() {
  local input
  [[ -z ${PYTHON:-} ]] || grep -qxsF "PYTHON=$PYTHON" "$stamp" || return 1
  finished_here && [[ ! -e $incomplete ]] && usable || return 1
  for input in "${inputs[@]}"; do
    [[ ! $input -nt $stamp ]] || return 1
  done
}

remove_environment() {
  # Removes only an environment, or what has its name: VENV=$HOME must not delete anyone's files.
  if [[ $(basename "$venv") != .venv && ! -e $venv/pyvenv.cfg && ! -e $incomplete && -n $(ls -A "$venv") ]]
  then die "$venv is not a virtual environment; not touching it"; fi
  rm -rf "$venv"
}

# prepare: creates an environment at $venv, or keeps it, and marks it as incomplete.
prepare() {
  if [[ -n ${PYTHON:-} ]]; then find_python; fi
  if [[ -d $venv ]]; then
    if [[ -e $incomplete ]] || ! usable || { [[ -e $stamp ]] && ! finished_here; }; then
      say "$venv is unfinished, broken or was moved; rebuilding it"
      find_python
      remove_environment
    elif ! consider "$venv/bin/python" ${version:-"${versions[@]}"}; then
      die "$venv has $("$venv/bin/python" -V): $reason. Remove it, or use another:" \
        "  make ... VENV=.venv-other"
    elif [[ ! -e $stamp ]]; then
      reinstall=1  # its packages may be incomplete
    fi
  else
    find_python
  fi
  mkdir -p "$venv"
  touch "$incomplete"
  if [[ ! -e $venv/pyvenv.cfg ]]; then
    if [[ $version == 3.10 ]]; then
      say "Python 3.10, with Launchpad and Reverb: $python"
    else
      say "Python $version, without Launchpad and Reverb, which need 3.10: $python"
    fi
    say "creating $venv"
    "$python" -m venv "$venv"
  fi
}

install_pins() {
  local pip=("$venv/bin/python" -m pip --disable-pip-version-check)
  local pins=requirements/py311plus.txt
  if [[ $version == 3.10 ]]; then pins=requirements/py310.txt; fi
  local quiet=(--quiet) pip_flags=(--no-deps) uv_flags=(--no-deps --compile-bytecode)
  if [[ -t 2 ]]; then quiet=(); fi
  if ((reinstall)); then pip_flags+=(--force-reinstall); uv_flags+=(--reinstall); fi
  say "installing $pins (downloads up to 700 MB the first time)"
  "${pip[@]}" install -qq -r requirements/bootstrap.txt
  # uv is several times faster, but ignores an index that is configured for pip alone.
  local with_uv=1
  if [[ -z ${UV_INDEX_URL:-}${UV_DEFAULT_INDEX:-} ]] \
      && "${pip[@]}" config list | grep -q '^[^=]*\.index-url='; then with_uv=0; fi
  if ((!with_uv)) || ! "$venv/bin/uv" pip install "${quiet[@]}" --python "$venv/bin/python" \
      "${uv_flags[@]}" -r "$pins"
  then
    say "installing with pip, which takes about a minute longer"
    "${pip[@]}" install "${quiet[@]}" "${pip_flags[@]}" -r "$pins"
  fi
  "${pip[@]}" install -qq --no-deps --no-build-isolation -e "$root"
}

install_preload() {
  local site
  site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  if [[ $preload != - ]]; then  # "-" on later runs, when the file exists and works
    printf 'import ctypes; ctypes.CDLL("%s")\n' "$preload" >"$site/libpython_preload.pth"
  fi
}

if [[ $(uname -s) != Linux ]]; then die "distrl needs Linux; this is $(uname -s)."; fi
if [[ $(uname -m) == x86_64 ]]; then launchpad=1; versions+=(3.10); fi

reinstall=0 version='' python='' preload=-
if [[ ${1:-} == --find ]]; then
  find_python
  echo "$version $python"
  exit 0
fi

if type -P flock >/dev/null; then
  exec 9<"$root"
  if ! flock -n 9; then
    say "another set-up of this repository is running; waiting for it (at most 15 minutes)"
    flock -w 900 9 || die "the other set-up did not finish; giving up"
  fi
fi
if up_to_date; then exit 0; fi

prepare
rm -f "$stamp"
install_pins
install_preload
say "checking that the packages can be imported"
imports="grpc, envpool, jax"
if [[ $version == 3.10 ]]; then imports+=", launchpad, reverb"; fi
"$venv/bin/python" -c "import $imports" </dev/null 2>"$incomplete" || {
  tail -n 3 "$incomplete" >&2
  die "the installed packages cannot be imported on $("$venv/bin/python" -V) (see above)"
}
printf '%s\n' "$venv" "PYTHON=${PYTHON:-}" >"$stamp"
rm -f "$incomplete"
say "done: $venv, $("$venv/bin/python" -V)"
