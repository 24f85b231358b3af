"""Confinement: what holds of every container that is made, a sandbox's and a service's."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any, Protocol

MEGABYTE = 1024 * 1024
CPU_PERIOD = 100_000
"""Microseconds."""
SECCOMP = json.dumps(json.loads(files("gymbox.providers").joinpath("seccomp.json").read_text()))


class Bounds(Protocol):
    """What a container may use."""

    @property
    def cpus(self) -> float: ...

    @property
    def memory_mb(self) -> int: ...

    @property
    def pids(self) -> int: ...

    @property
    def open_files(self) -> int: ...


def confined(bounds: Bounds, log_kb: int) -> dict[str, Any]:
    """The part of a `HostConfig` in which a manifest only says how much may be used; `log_kb` is its log's size."""
    memory = bounds.memory_mb * MEGABYTE
    return {
        "Init": True,
        "Privileged": False,
        "CapDrop": ["ALL"],
        "SecurityOpt": ["no-new-privileges:true", f"seccomp={SECCOMP}"],
        "ReadonlyRootfs": True,
        "ShmSize": 64 * MEGABYTE,
        "IpcMode": "private",
        "CgroupnsMode": "private",
        "Memory": memory,
        "MemorySwap": memory,
        # NanoCpus would say the same, but is refused where it is more than the machine has
        "CpuPeriod": CPU_PERIOD,
        "CpuQuota": int(bounds.cpus * CPU_PERIOD),
        "PidsLimit": bounds.pids,
        "Ulimits": [
            {"Name": "nofile", "Soft": bounds.open_files, "Hard": bounds.open_files},
            {"Name": "core", "Soft": 0, "Hard": 0},
        ],
        "LogConfig": {"Type": "json-file", "Config": {"max-size": f"{log_kb // 2}k", "max-file": "2"}},
        "RestartPolicy": {"Name": "no"},
    }
