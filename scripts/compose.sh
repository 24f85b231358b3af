#!/usr/bin/env bash
# docker compose on compose/compose.yaml, from anywhere. `up` says what is where; `down` also removes the sandboxes,
# which outlive the servers, and the controller's state.
set -euo pipefail
cd "$(dirname "$0")/.."
compose() { docker compose -f compose/compose.yaml "$@"; }
config=${GYMBOX_CONFIG:-${HOME}/.config}
shared=${GYMBOX_SHARED:-/run/gymbox-compose}
controller=http://127.0.0.1:${GYMBOX_CONTROLLER_PORT:-8710}
proxy=http://127.0.0.1:${GYMBOX_PROXY_PORT:-8711}
# made here, so that it is this user's and not root's
mkdir -p "$config/gymbox" "${GYMBOX_RUNS:-${HOME}/.local/share/gymbox/compose-runs}"
if [ "${1:-}" = down ] && [ -n "$(compose ps --all --quiet controller)" ]; then
    # one that has ended is started again: nobody else knows which sandboxes are its own
    if compose up --wait --no-recreate --no-deps controller && compose exec -T controller gymbox sandbox rm --all; then
        compose stop controller
        # by a container, since it is root's
        compose run --rm --no-deps -T --entrypoint rm controller -rf "$shared/main" "$shared/runs"
    else
        echo "compose: could not remove every sandbox; docker ps --filter label=gymbox.controller shows those left" >&2
    fi
fi
compose "$@"
if [ "${1:-}" = down ]; then
    rmdir "$shared" 2>/dev/null || true # the engine made it, so it goes only for root
elif [ "${1:-}" = up ]; then
    cat <<END

gymbox is up, on this machine only:
  controller  $controller (its API: $controller/docs)
  proxy       $proxy
    model     $proxy/models/${GYMBOX_MODEL:-scripted}/v1
    agent     $proxy/agents/tool_loop/run?environment=NAME
  token       $config/gymbox/token (goes with every request, as Authorization: Bearer …)
next:
  .venv/bin/gymbox run environment=counter model=scripted runner.limit=5 controller=$controller
  make down
END
fi
