#!/usr/bin/env bash
# Creates or updates the virtual environment of the Makefile's targets: a Python 3.10 with the
# packages of requirements/py310.txt, and this project in editable mode. Needs no root.
#
#   tools/setup_env.sh [ENVIRONMENT]      (default: .venv in the repository)
#
# PYTHON310=/path/to/python3.10 selects the interpreter; otherwise the script searches for one.
# Exit status: 0 done, 2 no usable interpreter or environment, else that of the install that failed.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
cd "$root"
venv=$(realpath -ms "${1:-.venv}")
stamp=$venv/.stamp            # names the environment that a finished set-up is for
incomplete=$venv/.incomplete  # exists while a set-up is in progress or was interrupted
inputs=(requirements/py310.txt requirements/bootstrap.txt pyproject.toml tools/setup_env.sh)
rejected=()                   # interpreters that looked like Python 3.10 and cannot be used
scratch=
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM  # else an interrupted uv would look like one that failed

say() { printf 'set-up: %s\n' "$*"; }
die() { printf 'set-up: %s\n' "$@" >&2; exit 2; }

# ---- finding a Python 3.10 ------------------------------------------------------------------

# Run by each candidate; prints its path and the libpython to preload ("-" for none).
# Courier's and Reverb's binaries are linked to libpython3.10.so.1.0. A statically linked
# interpreter (uv's builds) does not load that library, but usually comes with it.
read -r -d '' probe <<'PYTHON' || true
import os, sys
if sys.version_info[:2] != (3, 10) or sys.implementation.name != "cpython":
    sys.exit("it is not CPython 3.10")
name = "libpython3.10.so.1.0"
def mapped():
    with open("/proc/self/maps") as maps:
        return next((line.split(maxsplit=5)[5].strip() for line in maps if name in line), None)
preload = "-" if mapped() else None
try:
    import ctypes, ensurepip, ssl, sysconfig, venv
except ImportError as error:
    sys.exit(f"it lacks the standard module {error.name} (on Debian: python3.10-venv)")
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
path = os.path.join(sys.base_exec_prefix, "bin", "python3.10")  # not that of an environment
inside = sys.prefix != sys.base_prefix and os.path.exists(path)
print(path if inside else sys.executable, preload, sep="\t")
PYTHON

other_version="it is not CPython 3.10"

# consider CANDIDATE: sets python and preload, or fails and sets reason. It runs the candidate:
# pyenv's shims exist even for versions that they refuse to start.
consider() {
  local answer
  reason="it is not a program"
  [[ -x $1 && ! -d $1 ]] || return 1
  if answer=$(timeout -k 1 10 "$1" -c "$probe" 2>&1 </dev/null) && [[ $answer == *$'\t'* ]]; then
    IFS=$'\t' read -r python preload <<<"${answer##*$'\n'}"
    return 0
  fi
  reason=$(head -n 1 <<<"$answer")
  reason=${reason:-it does not run}
  if [[ $reason != "$other_version" && $1 == *3.10* ]]; then rejected+=("$1: $reason"); fi
  return 1
}

find_installed() {
  local candidate name candidates=()
  for name in python3.10 python3 python; do
    mapfile -t -O "${#candidates[@]}" candidates < <(type -aP "$name" || true)
  done
  shopt -s nullglob
  mapfile -t -O "${#candidates[@]}" candidates < <(
    printf '%s\n' {"${PYENV_ROOT:-$HOME/.pyenv}","$HOME/.pyenv"}/versions/3.10.*/bin/python | sort -rVu)
  candidates+=({/usr/bin,/usr/local/bin,"$HOME/.local/bin"}/python3.10
    {/opt,/usr/local,/opt/python}/*/bin/python3.10
    "${UV_PYTHON_INSTALL_DIR:-${XDG_DATA_HOME:-$HOME/.local/share}/uv/python}"/cpython-3.10*/bin/python3.10)
  shopt -u nullglob
  for candidate in "${candidates[@]}"; do
    consider "$candidate" && return 0
  done
  return 1
}

# get_with_uv: uses a Python that uv knows or downloads. Limited to about a minute, for machines
# without internet; if uv is missing, it is installed into a scratch folder.
get_with_uv() {
  local uv found candidate
  uv=$(PATH="$PATH:$HOME/.local/bin:$HOME/.cargo/bin" type -P uv || true)
  if [[ -z $uv ]]; then
    local pip_install=(install --quiet --disable-pip-version-check --timeout 5 --retries 0)
    candidate=$(type -P python3 || true)
    [[ -n $candidate ]] || return 1
    scratch=$(mktemp -d)
    say "no Python 3.10 is installed; fetching uv, which can download one"
    timeout -k 1 20 "$candidate" -m pip "${pip_install[@]}" --target "$scratch/uv" uv \
      </dev/null >"$scratch/log" 2>&1 || true
    uv=$scratch/uv/bin/uv
    [[ -x $uv ]] || return 1
  fi
  if ! found=$(timeout -k 1 10 "$uv" python find --system --no-python-downloads 3.10 2>/dev/null </dev/null) \
      || ! consider "$found"; then
    say "no Python 3.10 is installed; asking uv for one (at most 40 s)"
    UV_PYTHON_INSTALL_BIN=0 timeout -k 1 40 "$uv" python install 3.10 </dev/null >/dev/null 2>&1 \
      || return 1
    found=$(timeout -k 1 10 "$uv" python find --system --no-python-downloads 3.10 2>/dev/null </dev/null) \
      || return 1
    consider "$found"
  fi
}

find_python() {
  if [[ -n ${PYTHON310:-} ]]; then
    local named
    named=$(type -P "$PYTHON310" || true)
    if [[ -z $named ]]; then die "PYTHON310=$PYTHON310: no such program"; fi
    consider "$named" && return 0
    die "PYTHON310=$PYTHON310 cannot be used: $reason"
  fi
  find_installed && return 0
  get_with_uv && return 0
  local lines=("no Python 3.10 was found, and Launchpad and Reverb need one."
    "Searched the PATH, pyenv, /usr, /usr/local, /opt, and asked uv.")
  if ((${#rejected[@]})); then lines+=("${rejected[@]/#/  not usable: }"); fi
  die "${lines[@]}" "Install one, then run make again:" \
    "  pyenv install 3.10" \
    "  uv python install 3.10" \
    "  or, if it is elsewhere: PYTHON310=/path/to/python3.10 make ..." \
    "The single-process topology needs none of this on a newer Python: see docs/install.md."
}

# ---- the environment ------------------------------------------------------------------------

usable() { [[ -x $venv/bin/python ]] && timeout 20 "$venv/bin/python" -c '' </dev/null 2>/dev/null; }

finished_here() { [[ -f $stamp && $(<"$stamp") == "$venv" ]]; }

up_to_date() {
  local input
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

# prepare: creates an environment on Python 3.10 at $venv, or keeps it, and marks it as incomplete.
prepare() {
  if [[ -d $venv ]]; then
    if [[ -e $incomplete ]] || ! usable || { [[ -e $stamp ]] && ! finished_here; }; then
      say "$venv is unfinished, broken or was moved; rebuilding it"
      find_python
      remove_environment
    elif ! consider "$venv/bin/python"; then
      die "$venv was created by something else, on $("$venv/bin/python" -V). Remove it, or use another:" \
        "  make ... VENV=.venv310"
    elif [[ ! -e $stamp ]]; then
      reinstall=1  # its packages may be incomplete
    fi
  else
    find_python
  fi
  mkdir -p "$venv"
  touch "$incomplete"
  if [[ ! -e $venv/pyvenv.cfg ]]; then
    say "creating $venv with $python"
    "$python" -m venv "$venv"
  fi
}

install_pins() {
  local pip=("$venv/bin/python" -m pip --disable-pip-version-check)
  local quiet=(--quiet) pip_flags=(--no-deps) uv_flags=(--no-deps --compile-bytecode)
  if [[ -t 2 ]]; then quiet=(); fi
  if ((reinstall)); then pip_flags+=(--force-reinstall); uv_flags+=(--reinstall); fi
  say "installing requirements/py310.txt (downloads up to 700 MB the first time)"
  "${pip[@]}" install -qq -r requirements/bootstrap.txt
  # uv is several times faster, but ignores an index that is configured for pip alone.
  local with_uv=1
  if [[ -z ${UV_INDEX_URL:-}${UV_DEFAULT_INDEX:-} ]] \
      && "${pip[@]}" config list | grep -q '^[^=]*\.index-url='; then with_uv=0; fi
  if ((!with_uv)) || ! "$venv/bin/uv" pip install "${quiet[@]}" --python "$venv/bin/python" \
      "${uv_flags[@]}" -r requirements/py310.txt
  then
    say "installing with pip, which takes about a minute longer"
    "${pip[@]}" install "${quiet[@]}" "${pip_flags[@]}" -r requirements/py310.txt
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

case "$(uname -s) $(uname -m)" in
  "Linux x86_64") ;;
  *) die "Launchpad and Reverb have builds for Linux on x86-64 only; this is $(uname -sm)." ;;
esac

if type -P flock >/dev/null; then
  exec 9<"$root"
  if ! flock -n 9; then
    say "another set-up of this repository is running; waiting for it (at most 15 minutes)"
    flock -w 900 9 || die "the other set-up did not finish; giving up"
  fi
fi
if up_to_date; then exit 0; fi

reinstall=0 python='' preload=-
prepare
rm -f "$stamp"
install_pins
install_preload
say "checking that the packages can be imported"
"$venv/bin/python" -c 'import launchpad, reverb, envpool, jax' </dev/null 2>"$incomplete" || {
  tail -n 3 "$incomplete" >&2
  die "the installed packages cannot be imported on $("$venv/bin/python" -V) (see above)"
}
printf '%s\n' "$venv" >"$stamp"
rm -f "$incomplete"
say "done: $venv"
