"""Setup bubblewrap: what isolates the process provider's sandboxes. Standard library only, as setup_docker is.

`python -m gymbox.setup_bubblewrap` exits 0 once it works; otherwise it says why it cannot be had.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys

from gymbox.setup_docker import Say, Setup, SetupFailed, apt, to_stderr, told

WAYS_ON = ("use containers: provider=docker", "go on without: sandboxes are then plain processes of your user")


def ensure_bubblewrap(*, say: Say = to_stderr) -> Setup:
    """See to it that `bwrap` works: nothing to do where it does, else install it by apt, as root or by sudo.

    Idempotent; never raises for what the machine lacks.

    Args:
        say: gets one line before anything is changed.
    """
    if works():
        return Setup(True, "bubblewrap works")
    if shutil.which("bwrap"):
        return Setup(False, "bubblewrap is there, but this user may not make namespaces", WAYS_ON)
    if platform.system() != "Linux" or not shutil.which("apt-get"):
        return Setup(False, "no bubblewrap, and this is no Debian or Ubuntu", WAYS_ON)
    if os.geteuid() != 0 and not shutil.which("sudo"):
        return Setup(False, "no bubblewrap, and neither root nor sudo", WAYS_ON)
    say("installing bubblewrap by apt-get")
    try:
        apt("update")
        apt("install", "bubblewrap")
    except SetupFailed as error:
        return Setup(False, str(error), WAYS_ON)
    return Setup(works(), "bubblewrap works" if works() else "bubblewrap is installed, but does not work", WAYS_ON)


def works() -> bool:
    """Whether `bwrap` can make the namespaces of a sandbox."""
    command = ["bwrap", "--unshare-pid", "--unshare-net", "--ro-bind", "/", "/", "true"]
    try:
        return subprocess.run(command, capture_output=True, timeout=10, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def main() -> int:
    """Exit code 0 once bubblewrap works, else 1."""
    return told(ensure_bubblewrap())


if __name__ == "__main__":
    sys.exit(main())
