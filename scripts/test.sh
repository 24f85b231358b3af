#!/usr/bin/env bash
# Everything that must hold: lint, types, tests of every kind, coverage of both packages, nothing left behind.
set -euo pipefail
cd "$(dirname "$0")/.."
unset PYTHONDONTWRITEBYTECODE
began=$SECONDS
say() { printf '\n== %4ds %s\n' "$((SECONDS - began))" "$*"; }

missing() { # without it tests skip: fine on a laptop, not where main is judged
    echo "$1: the tests that need it are skipped" >&2
    [ -z "${CI:-}" ] || exit 1
}
say "engine, base image, registry, bubblewrap, Chromium, TRL, Inspect, E2B"
.venv/bin/python -m gymbox.setup_docker && .venv/bin/python -m gymbox.setup_base_image || missing "no Docker engine"
.venv/bin/python -m gymbox.setup_docker_registry || missing "no docker-registry"
.venv/bin/python -m gymbox.setup_bubblewrap || missing "no bubblewrap"
.venv/bin/python -m gymbox.setup_chromium || missing "no Chromium"
# by hand elsewhere: with PyTorch it is large
[ -z "${CI:-}" ] || .venv/bin/python scripts/setup_venv.py trl inspect e2b || missing "no TRL, no Inspect or no E2B"
# testcontainers' own reaper is an image that cannot always be pulled; the tests clean up by label
export TESTCONTAINERS_RYUK_DISABLED=true TESTCONTAINERS_CONNECTION_MODE=docker_host

say "ruff"
.venv/bin/ruff check .
.venv/bin/ruff format --check .
say "mypy"
.venv/bin/mypy

# servers in sandboxes run as other users: they must be able to write their part of the measurement
measured=$(mktemp -d /tmp/gymbox-coverage.XXXXXX)
chmod 1777 "$measured"
trap 'rm -rf "$measured"' EXIT
export COVERAGE_FILE=$measured/data
.venv/bin/python scripts/leaks.py before >"$measured/before.json"
say "tests"
if [ $# = 0 ]; then # the third has all that the others leave
    set -- --side-by-side tests/docker tests/integration \
        "tests environments --ignore=tests/docker --ignore=tests/integration"
    whole=yes
fi
.venv/bin/python scripts/run_tests.py "$measured/second-time" "$@"
say "leaks"
.venv/bin/python scripts/leaks.py after "$measured/before.json"
if [ -n "${whole:-}" ]; then
    say "coverage"
    .venv/bin/coverage combine --quiet "$measured"
    .venv/bin/coverage report
fi
cat "$measured/second-time"
say "all good$([ ! -s "$measured/second-time" ] || echo ", but for what passed only the second time")"
