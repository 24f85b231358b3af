#!/usr/bin/env bash
# Make .venv from the lock files. Idempotent: a second run only compares a digest.
# Needs python3 (any version) or uv; brings uv and, where no Python >= 3.12 is found, an interpreter that uv manages.
set -euo pipefail
cd "$(dirname "$0")/.."
say() { printf 'setup: %s\n' "$*"; }

digest=$(cat requirements-dev.lock pyproject.toml scripts/setup.sh | sha256sum | cut -d' ' -f1)
digest="$digest $PWD"
stamp=.venv/.gymbox-setup
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$digest" ] && .venv/bin/python -c 'import gymbox' 2>/dev/null; then
    say "nothing to do"
    exit 0
fi

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; elif command -v sudo >/dev/null; then sudo "$@"; else return 1; fi
}

find_uv() {
    command -v uv && return
    [ -x .tools/bin/uv ] && { echo .tools/bin/uv; return; }
    [ -x "$HOME/.local/bin/uv" ] && { echo "$HOME/.local/bin/uv"; return; }
    say "installing uv into .tools" >&2
    if ! python3 -m venv .tools >/dev/null 2>&1; then
        command -v apt-get >/dev/null || { say "need uv, or python3 with venv" >&2; return 1; }
        say "installing python3-venv with apt-get" >&2
        as_root apt-get -qq update >&2 && as_root apt-get -qq install -y python3 python3-venv >&2
        rm -rf .tools
        python3 -m venv .tools >&2
    fi
    .tools/bin/python -m pip install --quiet --disable-pip-version-check uv >&2
    echo .tools/bin/uv
}

find_python() {
    local candidate
    for candidate in python3.12 python3.13 python3.14 python3 \
        "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.1[2-9]*/bin/python3; do
        candidate=$(command -v "$candidate" 2>/dev/null) || continue
        if "$candidate" -c 'import sys, venv; sys.exit(sys.version_info < (3, 12))' 2>/dev/null; then
            "$candidate" -c 'import sys; print(sys.executable)'
            return
        fi
    done
    echo 3.12 # none here: uv downloads one
}

uv=$(find_uv)
python=$(find_python)
say "making .venv with $python"
[ -x .venv/bin/python ] && .venv/bin/python -c 'import sys; sys.exit(sys.version_info < (3, 12))' 2>/dev/null ||
    "$uv" venv --quiet --clear --python "$python" .venv
"$uv" pip sync --quiet --python .venv/bin/python --require-hashes requirements-dev.lock
"$uv" pip install --quiet --python .venv/bin/python --no-deps --no-build-isolation -e .
# where Python may keep no bytecode, as in many images, each command would spend seconds on compiling what it imports
used="gymbox.cli, gymbox.config, gymbox.embedded, gymbox.runs.job, gymbox.models.server, gymbox_sandbox.serve"
env -u PYTHONDONTWRITEBYTECODE .venv/bin/python -c "import $used" ||
    { say "what was installed cannot be imported; see above" >&2; exit 1; }
printf '%s' "$digest" >"$stamp"
say "ready: .venv/bin/gymbox"
