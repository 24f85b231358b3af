#!/usr/bin/env bash
# Make the lock files anew from pyproject.toml and sandboxes/requirements.in: hashes, no index named, no paths.
set -euo pipefail
cd "$(dirname "$0")/.."
uv=$(command -v uv || echo .tools/bin/uv)
lock() { "$uv" pip compile --quiet --universal --python-version 3.12 --generate-hashes --no-header --no-annotate "$@"; }
lock pyproject.toml -o requirements.lock "${@}"
lock pyproject.toml --extra local --extra litellm --extra datasets --extra frameworks --extra mlflow --extra wandb --extra dev \
    --overrides requirements-overrides.txt -c requirements.lock -o requirements-dev.lock "${@}"
lock sandboxes/requirements.in -c requirements.lock -o sandboxes/requirements.lock "${@}"
