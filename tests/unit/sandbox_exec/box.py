"""`python -m gymbox_sandbox serve`, with everything imported before the user changes, since that one may have no
access to where this Python is installed."""

from __future__ import annotations

import sys
import tarfile  # noqa: F401
from concurrent.futures import ThreadPoolExecutor  # noqa: F401

import uvicorn.loops.auto  # noqa: F401
from gymbox_sandbox import exec_routes, rehearsal, serve, snapshots, state_archive, supervisor  # noqa: F401
from gymbox_sandbox.options import Options
from uvicorn.lifespan.off import LifespanOff  # noqa: F401

if __name__ == "__main__":
    options = Options.parse(sys.argv[1:])
    server = serve.load(options.server)
    rehearsal.rehearse(server)
    sys.exit(supervisor.run(options, lambda options, commands: serve.serve(options, commands, server)))
