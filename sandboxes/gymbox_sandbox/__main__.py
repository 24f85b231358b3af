"""The command line inside a sandbox: ``python -m gymbox_sandbox serve …`` and ``… zygote …``."""

from __future__ import annotations

import gc
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gymbox_sandbox.commands import Commands
    from gymbox_sandbox.options import Options

USAGE = "usage: python -m gymbox_sandbox serve|zygote --name NAME --server FILE.py[:Class] …"


def main(arguments: list[str]) -> int:
    """Run one of the two and return its exit code."""
    mode, *rest = arguments or [""]
    if mode == "serve":
        from gymbox_sandbox.options import Options
        from gymbox_sandbox.supervisor import run

        return run(Options.parse(rest), _serve)
    if mode == "zygote":
        from gymbox_sandbox.zygote import Zygote

        return Zygote(rest).run()
    print(USAGE, file=sys.stderr)
    return 2


def _serve(options: Options, commands: Commands) -> int:
    gc.disable()  # what is imported stays: to look for garbage in it, time and again, is 3 % of a server's start
    # imported only here, in the server's process: the supervisor stays small
    from gymbox_sandbox.serve import serve

    gc.freeze()
    gc.enable()
    return serve(options, commands)


if __name__ == "__main__":
    # with -m, the working directory comes first on the path, and in a sandbox the agent may write there
    if not sys.flags.safe_path and sys.path and sys.path[0] == os.getcwd():
        del sys.path[0]
    sys.exit(main(sys.argv[1:]))
