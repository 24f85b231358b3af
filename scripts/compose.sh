#!/usr/bin/env bash
# docker compose on compose/compose.yaml, from anywhere.
set -euo pipefail
cd "$(dirname "$0")/.."
# made here, so that it is this user's and not root's
mkdir -p "${GYMBOX_CONFIG:-${HOME}/.config}/gymbox"
exec docker compose -f compose/compose.yaml "$@"
