#!/usr/bin/env bash
# Resolves the pins of requirements/ again: the newest releases within the bounds of pyproject.toml.
#
#   tools/renew_pins.sh FOLDER      (which has uv and a Python with distrl; `make pins`)
#
# Then run the tests on both: `make test-all` and `make test PYTHON=newest`. Exit status: that of the
# resolution that failed; the files are replaced only when all have succeeded.
set -euo pipefail

bin=$(realpath "$1")
cd "$(dirname "${BASH_SOURCE[0]}")/.."
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# Everything but the site's packages. cuda12 and ray are for those who need them.
extras=()
for extra in atari dev debug flax pandas plot suites tensorboard video; do extras+=(--extra "$extra"); done
linux=x86_64-manylinux_2_28

# pin FILE COMMENT ARGUMENT...: has uv resolve, into a file that begins with the comment.
pin() {
  local file=$1 comment=$2
  shift 2
  echo "resolving requirements/$file"
  "$bin/uv" pip compile --quiet --no-header --no-annotate "$@" --output-file "$scratch/resolved"
  { printf '%b' "$comment"; grep -v "sys_platform == 'win32'" "$scratch/resolved"; } >"$scratch/$file"
  rm "$scratch/resolved"
}

pin py310.txt "# Every package for Python 3.10, pinned: Launchpad, Reverb, and what is compatible with them.
# Installed without resolving dependencies. \`make pins\` renews it.\n" \
  --python-version 3.10 --python-platform "$linux" --extra launchpad "${extras[@]}" pyproject.toml
pin py311plus.txt "# Every package for Python 3.11 to 3.14, pinned. Installed without resolving dependencies.
# \`make pins\` renews it.\n" \
  --python-version 3.11 --universal "${extras[@]}" pyproject.toml
pin bootstrap.txt "# The installers, put into the environment before the other pins.
# setuptools stays below 81: later versions lack pkg_resources, which TensorBoard 2.8 imports.\n" \
  --python-version 3.10 --universal - <<<$'pip\nsetuptools<81\nuv\nwheel'
"$bin/python" - >"$scratch/docs.in" <<'PYTHON'
import importlib.metadata

for requirement in importlib.metadata.requires("distrl"):
    name, _, marker = requirement.partition(";")
    if marker.strip() in ('extra == "docs"', "extra == 'docs'"):
        print(name)
PYTHON
pin docs.txt "# What builds the site of docs/ (make docs), in an environment of its own. Any Python from 3.10 on.\n" \
  --python-version 3.10 --universal "$scratch/docs.in"

for version in 3.11 3.12 3.13 3.14; do
  echo "looking for wheels for Python $version"
  "$bin/uv" pip compile --quiet --python-version "$version" --python-platform "$linux" --no-deps \
    --only-binary :all: "$scratch/py311plus.txt" >"$scratch/found"
done
for file in py310 py311plus bootstrap docs; do mv "$scratch/$file.txt" "requirements/$file.txt"; done
git --no-pager diff --stat -- requirements
