"""Diagnosis: what this machine's Docker engine has and lacks for gymbox, and what mends each lack."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import requests
from docker import APIClient
from docker.errors import DockerException, ImageNotFound
from docker.utils.utils import compare_version

from gymbox.errors import by_this_python
from gymbox.providers.engine import DEFAULT_HOST
from gymbox.setup_base_image import BASE_IMAGE

OLDEST_API = "1.41"
"""That of engine 20.10."""
SETTINGS = "/etc/docker/daemon.json"
TIMEOUT = 10


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    name: str
    ok: bool
    detail: str
    remedy: str | None = None
    """The command, or the line of a file, that mends it."""
    required: bool = True
    """False: it works without, but worse; `detail` says how."""


def diagnose(host: str | None = None, base_image: str = BASE_IMAGE) -> list[Finding]:
    """Look at the engine, at its settings, and at what is beside it; changes nothing. Blocks for some seconds at most.

    Without an engine that answers there is only the finding that says so.
    """
    address = host or DEFAULT_HOST
    try:
        api: Any = APIClient(address, version="auto", timeout=TIMEOUT)
        version, info = api.version(), api.info()
    except (DockerException, requests.RequestException) as error:
        detail = f"none answers at {address}: {error}"
        return [Finding("Docker engine", False, detail, by_this_python("setup_docker"))]
    try:
        return [_version(version), *_limits(info), *_settings(info), _base_image(api, base_image), _compose()]
    finally:
        api.close()


def _version(version: dict[str, Any]) -> Finding:
    detail = f"{version['Version']} (API {version['ApiVersion']})"
    new_enough = compare_version(OLDEST_API, version["ApiVersion"]) >= 0
    remedy = None if new_enough else "install Docker 20.10 or newer: https://docs.docker.com/engine/install/"
    return Finding("Docker engine", new_enough, detail, remedy)


def _limits(info: dict[str, Any]) -> Iterator[Finding]:
    seccomp = any(option.startswith("name=seccomp") for option in info.get("SecurityOptions") or [])
    remedy = None if seccomp else "use a kernel with CONFIG_SECCOMP and an engine that was built with it"
    yield Finding("system call filter", seccomp, "seccomp" if seccomp else "the engine has none", remedy)

    missing = [name for name in ("MemoryLimit", "PidsLimit", "CpuCfsQuota") if not info.get(name)]
    detail = f"cgroup v{info.get('CgroupVersion', '1')}" + (f" without {', '.join(missing)}" if missing else "")
    remedy = "mount the cgroup controllers memory, pids and cpu, then restart the engine" if missing else None
    yield Finding("resource limits", not missing, detail, remedy)


def _settings(info: dict[str, Any]) -> Iterator[Finding]:
    live = bool(info.get("LiveRestoreEnabled"))
    detail = "on" if live else "off: sandboxes end when the engine restarts"
    remedy = None if live else f'add "live-restore": true to {SETTINGS}, then: sudo pkill -HUP -x dockerd'
    yield Finding("live-restore", live, detail, remedy, required=False)

    pools = info.get("DefaultAddressPools") or []
    detail = f"{len(pools)} of your own" if pools else "Docker's own: networks run out near 30"
    pool = '"default-address-pools": [{"base": "172.20.0.0/14", "size": 26}]'
    remedy = None if pools else f"add {pool} to {SETTINGS}, then: sudo systemctl restart docker"
    yield Finding("address pools", bool(pools), detail, remedy, required=False)


def _base_image(api: Any, base_image: str) -> Finding:
    try:
        api.inspect_image(base_image)
    except ImageNotFound:
        detail = f"{base_image} is not there; the first build tries to pull it"
        return Finding("base image", False, detail, by_this_python("setup_base_image"), required=False)
    return Finding("base image", True, base_image)


def _compose() -> Finding:
    try:
        command = ["docker", "compose", "version", "--short"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
        version = done.stdout.strip() if done.returncode == 0 else ""
    except (OSError, subprocess.TimeoutExpired):
        version = ""
    if version:
        return Finding("docker compose", True, version)
    remedy = "sudo apt-get install docker-compose-v2 (Ubuntu), docker-compose (Debian 13)"
    return Finding("docker compose", False, "not there: compose/compose.yaml cannot be used", remedy, required=False)
