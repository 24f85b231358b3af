#!/usr/bin/env bash
# Real tasks, end to end: dataset -> container -> model -> tools -> verify -> reward.
set -uo pipefail
cd "$(dirname "$0")/.."
provider=docker
if ! .venv/bin/python -m gymbox.setup_docker || ! .venv/bin/python -m gymbox.setup_base_image; then
    provider=process
    .venv/bin/python -m gymbox.setup_bubblewrap
    printf '\n!!! No Docker engine: tasks run as local processes. %s\n\n' \
        "The wall between a task and this machine, and the one between tasks, is thin or missing."
fi
exec .venv/bin/gymbox run environment=counter,unit_tests,weather model=local provider="$provider" runner.limit=5 "$@"
