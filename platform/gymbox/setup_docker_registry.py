"""Setup docker registry: a registry of images for tests to pull from. Standard library only, as setup_docker is.

`python -m gymbox.setup_docker_registry` exits 0 once the program is there; otherwise it says why it cannot be had.
"""

from __future__ import annotations

import platform
import shutil
import sys
import tempfile
from pathlib import Path

from gymbox.setup_docker import Say, Setup, SetupFailed, apt, first_that_works, run, to_stderr, told

NAME = "docker-registry"
FOLDER = Path("~/.cache/gymbox/docker-registry")
"""Where the package is unpacked: to install it would start a registry and have it start with the machine."""
WAYS_ON = ("put a docker-registry on the PATH", "go on without: no test pulls an image")


def ensure_docker_registry(*, say: Say = to_stderr) -> Setup:
    """See to it that there is a docker-registry: nothing to do where there is, else unpack Debian's package.

    Idempotent; never raises for what the machine lacks.

    Args:
        say: gets one line before anything is fetched.
    """
    if (found := docker_registry()) is not None:
        return Setup(True, f"{found} works")
    if platform.system() != "Linux" or not shutil.which("apt-get"):
        return Setup(False, f"no {NAME}, and this is no Debian or Ubuntu", WAYS_ON)
    say(f"fetching {NAME} by apt-get")
    try:
        with tempfile.TemporaryDirectory(prefix="gymbox-registry-") as folder:
            Path(folder).chmod(0o755)  # apt fetches as a user of its own
            try:
                apt("download", NAME, cwd=folder)
            except SetupFailed:
                apt("update")
                apt("download", NAME, cwd=folder)
            [package] = Path(folder).glob("*.deb")
            into = FOLDER.expanduser()
            into.mkdir(parents=True, exist_ok=True)  # dpkg-deb makes the last folder only
            run(f"unpack {NAME}", ["dpkg-deb", "--extract", str(package), str(into)])
    except (SetupFailed, OSError, ValueError) as error:
        return Setup(False, str(error), WAYS_ON)
    if (found := docker_registry()) is not None:
        return Setup(True, f"{found} works")
    return Setup(False, f"{NAME} was unpacked, but does not work", WAYS_ON)


def docker_registry() -> str | None:
    """Where a docker-registry is that tells its version; None where there is none."""
    return first_that_works(shutil.which(NAME), str(FOLDER.expanduser() / "usr/bin" / NAME))


def main() -> int:
    """Exit code 0 once it is there, else 1."""
    return told(ensure_docker_registry())


if __name__ == "__main__":
    sys.exit(main())
