"""Setup Chromium: in which tests and benchmarks look at reports. Standard library only, as setup_docker is.

`python -m gymbox.setup_chromium` exits 0 once it works; otherwise it says why it cannot be had.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys

from gymbox.setup_docker import Say, Setup, SetupFailed, apt, first_that_works, to_stderr, told

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
"""Programs that are one, in the order in which they are looked for."""
WAYS_ON = ("install Chromium or Chrome so that it is on the PATH", "go on without: no test looks at a report")


def ensure_chromium(*, say: Say = to_stderr) -> Setup:
    """See to it that Chromium works: nothing to do where it does, else install it by apt, as root or by sudo.

    Idempotent; never raises for what the machine lacks.

    Args:
        say: gets one line before anything is changed.
    """
    if (found := chromium()) is not None:
        return Setup(True, f"{found} works")
    if platform.system() != "Linux" or not shutil.which("apt-get"):
        return Setup(False, "no Chromium, and this is no Debian or Ubuntu", WAYS_ON)
    if os.geteuid() != 0 and not shutil.which("sudo"):
        return Setup(False, "no Chromium, and neither root nor sudo", WAYS_ON)
    say("installing chromium by apt-get")
    try:
        apt("update")
        apt("install", "chromium")
    except SetupFailed as error:
        return Setup(False, str(error), WAYS_ON)
    if (found := chromium()) is not None:
        return Setup(True, f"{found} works")
    return Setup(False, "chromium is installed, but does not work", WAYS_ON)


def chromium() -> str | None:
    """Where a browser is that tells its version; None where there is none."""
    return first_that_works(*(shutil.which(name) for name in NAMES))


def main() -> int:
    """Exit code 0 once Chromium works, else 1."""
    return told(ensure_chromium())


if __name__ == "__main__":
    sys.exit(main())
