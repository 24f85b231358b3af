#!/usr/bin/env bash
# Real tasks, end to end: dataset -> container -> model -> tools -> verify -> reward.
set -uo pipefail
cd "$(dirname "$0")/.."
if ! .venv/bin/python -m gymbox.setup_docker || ! .venv/bin/python -m gymbox.setup_base_image; then
    .venv/bin/python -m gymbox.setup_bubblewrap # thin, but better than nothing
fi
# provider=auto: containers where there is an engine, else processes and one loud line that says what that costs
exec .venv/bin/gymbox run environment=counter,unit_tests,weather model=local provider=auto runner.limit=5 "$@"
