#!/usr/bin/env bash
# docker compose on compose/compose.yaml, from anywhere. `down` also removes the sandboxes, which outlive the servers.
set -euo pipefail
cd "$(dirname "$0")/.."
compose() { docker compose -f compose/compose.yaml "$@"; }
# made here, so that it is this user's and not root's
mkdir -p "${GYMBOX_CONFIG:-${HOME}/.config}/gymbox"
if [ "${1:-}" = down ] && [ -n "$(compose ps --all --quiet controller)" ]; then
    # one that has ended is started again: nobody else knows which sandboxes are its own
    if ! compose up --wait --no-recreate --no-deps controller || ! compose exec -T controller gymbox sandbox rm --all; then
        echo "compose: could not remove every sandbox; docker ps --filter label=gymbox.controller shows those left" >&2
    fi
fi
compose "$@"
