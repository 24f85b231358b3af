"""Container: what the engine is asked to create for a sandbox.

Pure functions, so that tests hold every container against a checklist. The only things that vary are those of the
environment's manifest; nothing that a caller says reaches the engine as it is.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gymbox_sandbox.options import User

from gymbox.environment import Environment, Limits, Manifest
from gymbox.network import RESOLVER, told, way_out
from gymbox.providers import StartSpec
from gymbox.providers.confinement import confined

CONTROLLER_LABEL = "gymbox.controller"
ENVIRONMENT_LABEL = "gymbox.environment"
DIRECTORY_LABEL = "gymbox.directory"
NETWORK_LABEL = "gymbox.network"
SERVICES_LABEL = "gymbox.services"
"""Of a sandbox: the names of its services."""
SERVICE_LABEL = "gymbox.service-of"
"""Of a service: the container that it belongs to."""

DIRECTORY = "/run/gymbox"
"""Where a sandbox's directory is mounted."""
WORKSPACE = "/workspace"
PYTHON = "/opt/gymbox/venv/bin/python"
ENVIRONMENT = "/opt/gymbox/environment"
SERVER_UID, PROXY_GID, AGENT_UID = 10002, 10003, 10001
INODES_PER_MB = 64
"""Files that a file system may hold, where the manifest does not say: one for each 16 KiB."""
CAPABILITIES = ("KILL", "SETGID", "SETUID")
"""What the supervisor needs to start and to end processes of the two users, and to use files as these for a snapshot;
none of their processes ever has one."""


def server_user(caller: User) -> User:
    """Who serves inside: a user of its own under a root caller, else the caller, as both must use the directory."""
    return User(SERVER_UID, PROXY_GID) if caller.uid == 0 else caller


def server_command(environment: Environment, server: User) -> list[str]:
    """What runs in the container.

    `-I`: modules come from the image alone, never from a folder that the agent may write to.
    """
    manifest = environment.manifest
    options = {
        "--name": environment.name,
        "--server": f"{ENVIRONMENT}/{manifest.server}",
        "--directory": DIRECTORY,
        "--workspace": WORKSPACE,
        "--server-user": str(server),
        "--agent-user": f"{AGENT_UID}:{AGENT_UID}",
        "--max-sessions": str(manifest.sessions),
        "--tool-timeout": f"{manifest.timeouts.tool:g}",
        "--reset-timeout": f"{manifest.timeouts.reset:g}",
        "--verify-timeout": f"{manifest.timeouts.verify:g}",
    }
    if way := way_out(manifest.network):
        options["--network"] = str(way)
        if manifest.services:
            options["--services"] = ",".join(manifest.services)
    return [PYTHON, "-IBu", "-m", "gymbox_sandbox", "serve", *(word for pair in options.items() for word in pair)]


def container_config(spec: StartSpec, image: str, controller_id: str, command: list[str]) -> dict[str, Any]:
    """The body of the Engine API's `POST /containers/create`."""
    manifest = spec.environment.manifest
    labels = {
        **spec.labels,
        CONTROLLER_LABEL: controller_id,
        ENVIRONMENT_LABEL: spec.environment.name,
        DIRECTORY_LABEL: str(spec.directory),
        NETWORK_LABEL: told(manifest.network),
        **({SERVICES_LABEL: ",".join(manifest.services)} if manifest.services else {}),
    }
    return {
        "Image": image,
        "Entrypoint": command,
        "Cmd": [],
        "User": "0:0",
        "WorkingDir": "/",
        "Hostname": "sandbox",
        "Env": [],
        "Labels": labels,
        "StopTimeout": 1,
        "HostConfig": _host_config(spec, network_of(spec.id) if has_network(manifest) else "none"),
    }


def _host_config(spec: StartSpec, network: str) -> dict[str, Any]:
    limits = spec.environment.manifest.limits
    agents = f"uid={AGENT_UID},gid={AGENT_UID}"
    tmpfs = {
        "/tmp": _tmpfs(limits, limits.tmp_mb, "mode=1777"),
        "/home/agent": _tmpfs(limits, limits.tmp_mb, f"mode=0700,{agents}"),
    }
    if spec.disk is None:
        tmpfs[WORKSPACE] = _tmpfs(limits, limits.workspace_mb, f"mode=0755,{agents}")
    return {
        **confined(limits, log_kb=limits.log_mb * 1024),
        "CapAdd": list(CAPABILITIES),
        "Binds": [f"{spec.directory}:{DIRECTORY}:rw", *_resolver(spec)],
        "Tmpfs": tmpfs,
        "NetworkMode": network,
        # where nothing answers, the sandbox's relay neither: the engine would pass questions on to the host's resolver
        # (CVE-2024-29018)
        "Dns": ["127.0.0.2"] if network != "none" else [],
        # shared memory goes with the last process that holds it, so what the agent leaves cannot starve verify
        "Sysctls": {"kernel.shm_rmid_forced": "1"},
        **({} if spec.disk is None else {"Mounts": [_volume(spec.disk)]}),
    }


def _resolver(spec: StartSpec) -> list[str]:
    """Whom a sandbox with a way out asks for names: its own relay. The host's resolver is not behind that."""
    if way_out(spec.environment.manifest.network) is None:
        return []
    return [f"{spec.directory.parent}/{RESOLVER}:/etc/resolv.conf:ro"]


def has_network(manifest: Manifest) -> bool:
    """Whether its sandboxes have a network of their own, which leads nowhere."""
    return manifest.network == "internal" or bool(manifest.services)


def network_of(id: str) -> str:
    """The name of a sandbox's own network."""
    return f"gymbox-{id}"


def network_config(spec: StartSpec, controller_id: str) -> dict[str, Any]:
    """The network of a sandbox whose manifest says `internal` or has services, as arguments of `create_network`.

    Nobody else is in it, it leads nowhere, and the host has no address in it: on an ordinary internal network every
    service of the host that listens on all addresses can be reached at the gateway's.
    """
    return {
        "name": network_of(spec.id),
        "driver": "bridge",
        "internal": True,
        "check_duplicate": True,
        "labels": {CONTROLLER_LABEL: controller_id},
        "options": {
            "com.docker.network.bridge.inhibit_ipv4": "true",
            "com.docker.network.bridge.enable_icc": "true" if spec.environment.manifest.services else "false",
        },
    }


def inodes_of(limits: Limits, megabytes: int) -> int:
    """How many files a file system of this size may hold."""
    return limits.inodes or megabytes * INODES_PER_MB


def _tmpfs(limits: Limits, megabytes: int, owner: str) -> str:
    # exec, unlike Docker's default: compilers and tests run what they make
    return f"rw,exec,nosuid,nodev,size={megabytes}m,nr_inodes={inodes_of(limits, megabytes)},{owner}"


def _volume(device: str) -> dict[str, Any]:
    """The workspace as a nameless volume on a block device, which the engine mounts and forgets with the container."""
    options = {"type": "ext4", "device": device, "o": "nosuid,nodev"}
    driver = {"Name": "local", "Options": options}
    return {"Type": "volume", "Target": WORKSPACE, "VolumeOptions": {"NoCopy": True, "DriverConfig": driver}}


def directory_of(labels: dict[str, str]) -> Path | None:
    """The directory of a container that has these labels."""
    directory = labels.get(DIRECTORY_LABEL)
    return Path(directory) if directory else None
