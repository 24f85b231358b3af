#!/usr/bin/env bash
# docker compose on compose/compose.yaml, from anywhere.
set -euo pipefail
cd "$(dirname "$0")/.."
exec docker compose -f compose/compose.yaml "$@"
