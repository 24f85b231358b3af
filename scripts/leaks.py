"""Leaks: what the tests left behind. `leaks.py before` prints a snapshot; `leaks.py after FILE` compares with it.

Looked at: containers, networks and volumes (where CI is set all of them, else those with a gymbox label, since this
machine may be doing other things), processes of ours, and sockets and folders of ours in the temporary folders. Runs
that a test has killed are first swept as the next run would sweep them. Exit code 1 names each leftover.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from gymbox.cli.places import state_folder
from gymbox.controller.sweep import sweep_abandoned
from gymbox.errors import Unavailable
from gymbox.providers.docker import DockerProvider
from gymbox.providers.process import ProcessProvider
from gymbox.runs.register import Register

LABEL = "gymbox.controller"
GRACE = 10.0
"""Seconds in which what is still going away may go."""


def docker(*words: str) -> set[str]:
    """Lines that the Docker client prints; none where there is no engine."""
    try:
        done = subprocess.run(["docker", *words], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return set()
    return set(done.stdout.split()) if done.returncode == 0 else set()


def processes() -> set[str]:
    """`pid command` of each live process that runs gymbox code, but for this one and its parents."""
    found, mine = set(), {os.getpid(), os.getppid()}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        ours = "gymbox_sandbox" in command or "/gymbox " in command or "gymbox.cli" in command
        if ours and state != "Z" and int(entry.name) not in mine and "scripts/" not in command:
            found.add(f"{entry.name} {command[:120]}")
    return found


def files() -> set[str]:
    """Folders and sockets of ours in the temporary and runtime folders."""
    roots = {Path(tempfile.gettempdir()), Path("/run/gymbox"), Path("/dev/shm")}
    found = set()
    for root in roots:
        for pattern in ("**/*",) if root.name == "gymbox" else ("gymbox*", "gbx*"):
            found |= {str(path) for path in root.glob(pattern) if root.is_dir() and "coverage" not in path.name}
    # what a controller keeps for its next start
    kept = ("/main", "/main/deletes", "/main/s", "/key", "/lock", "/id", "/token", "/gymbox/runs", "/runs/lock")
    return {path for path in found if not path.endswith(kept) and not of_swept_run(path)}


def of_swept_run(path: str) -> bool:
    """Whether it is kept on purpose: a killed run's state stays for minutes after the sweep, for what an engine may
    still make, with nothing in it but its own records."""
    folder = Path("/run/gymbox", *Path(path).parts[3:4])
    if not folder.name.startswith("run-") or not path.startswith("/run/gymbox/"):
        return False
    return (folder / "swept").exists() and not any(any((folder / name).iterdir()) for name in ("s", "deletes"))


async def sweep() -> None:
    """What killed runs have left, as far as their states tell of it."""
    for provider in (DockerProvider(), ProcessProvider()):
        try:
            await sweep_abandoned(state_folder(), provider)
        except Unavailable as error:
            print(f"not swept: {error.detail}")
    Register(state_folder()).live()  # drops those whose process is no more


def snapshot() -> dict[str, list[str]]:
    chosen = [] if os.environ.get("CI") else ["--filter", f"label={LABEL}"]
    return {
        "containers": sorted(docker("ps", "-aq", *chosen)),
        "networks": sorted(docker("network", "ls", "-q", *chosen)),
        "volumes": sorted(docker("volume", "ls", "-q", *chosen)),
        "processes": sorted(processes()),
        "files": sorted(files()),
    }


def left(before: dict[str, list[str]]) -> dict[str, list[str]]:
    now = snapshot()
    return {kind: sorted(set(now[kind]) - set(before.get(kind, []))) for kind in now}


def main() -> int:
    if sys.argv[1:] == ["before"]:
        print(json.dumps(snapshot()))
        return 0
    before = json.loads(Path(sys.argv[2]).read_text())
    asyncio.run(sweep())
    deadline = time.monotonic() + GRACE
    while any((leftovers := left(before)).values()) and time.monotonic() < deadline:
        time.sleep(0.5)
    for kind, names in leftovers.items():
        for name in names:
            print(f"left behind: {kind[:-1]} {name}")
    if not any(leftovers.values()):
        print("nothing left behind")
    return int(any(leftovers.values()))


if __name__ == "__main__":
    sys.exit(main())
