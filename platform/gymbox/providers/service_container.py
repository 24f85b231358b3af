"""Service container: what the engine is asked to create for a service. Pure, as `container` is, and as strict as a
database can bear."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from gymbox.providers import StartSpec
from gymbox.providers.confinement import confined
from gymbox.providers.container import (
    CONTROLLER_LABEL,
    DIRECTORY_LABEL,
    ENVIRONMENT_LABEL,
    INODES_PER_MB,
    SERVICE_LABEL,
    SERVICES_LABEL,
    network_of,
)
from gymbox.providers.images import ServiceImage

CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "SETGID", "SETUID")
"""What an image's entry point needs that starts as root, makes its folders its user's, and becomes that user."""
LOG_KB = 20 * 1024


def service_name(id: str, service: str) -> str:
    """The name of a service's container. No sandbox's container is ever named so: theirs begin with `gymbox-`."""
    return f"gymbox.service.{id}.{service}"


def service_of(name: str) -> str:
    """The service whose container is named so."""
    return name.rpartition(".")[2]  # it has no dot itself, while ids of sandboxes may


def service_config(spec: StartSpec, name: str, image: ServiceImage, controller_id: str) -> dict[str, Any]:
    """The body of the Engine API's `POST /containers/create`."""
    service = spec.environment.manifest.services[name]
    limits, network = service.limits, network_of(spec.id)
    writable = {"/tmp": None, "/run": None, **image.writable}
    return {
        "Image": image.tag,
        "Cmd": service.command or None,
        "User": service.user or "",
        "Hostname": name,
        "Env": [f"{variable}={value}" for variable, value in service.env.items()],
        "Labels": {
            CONTROLLER_LABEL: controller_id,
            ENVIRONMENT_LABEL: spec.environment.name,
            SERVICE_LABEL: spec.id,
            DIRECTORY_LABEL: str(spec.directory),  # the sandbox's, for when only the service is left of it
        },
        "StopTimeout": 1,
        # it is asked while it starts, and its end is heard; asking for ever costs a process each time
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": {
            **confined(limits, log_kb=LOG_KB),
            # one that never is root needs none
            "CapAdd": [] if service.user not in (None, "0", "root") else list(CAPABILITIES),
            "Tmpfs": {folder: _tmpfs(limits.tmpfs_mb, owner) for folder, owner in writable.items()},
            "NetworkMode": network,
            "Dns": ["127.0.0.1"],  # as for a sandbox: a resolver that answers nobody
        },
        "NetworkingConfig": {"EndpointsConfig": {network: {"Aliases": [name]}}},
    }


def _tmpfs(megabytes: int, owner: tuple[int, int] | None) -> str:
    # the mode counts for folders that the image has not; others keep theirs
    whose = "" if owner is None else f",uid={owner[0]},gid={owner[1]}"
    return f"rw,exec,nosuid,nodev,mode=1777,size={megabytes}m,nr_inodes={megabytes * INODES_PER_MB}{whose}"


def doomed(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of a controller's containers, as the engine lists them, those that must go when a controller begins: what does
    not run, services whose sandbox does not, and sandboxes that lack a service, with their other services."""
    rows = list(rows)
    running = [row for row in rows if row["State"] in ("running", "paused")]
    services: dict[str, set[str]] = defaultdict(set)
    for row in running:
        services[row["Labels"].get(SERVICE_LABEL, "")].add(service_of(_name(row)))
    whole = {
        _name(row)
        for row in running
        if SERVICE_LABEL not in row["Labels"]
        and set(filter(None, row["Labels"].get(SERVICES_LABEL, "").split(","))) <= services[_name(row)]
    }
    return [row for row in rows if row["Labels"].get(SERVICE_LABEL, _name(row)) not in whole]


def _name(row: dict[str, Any]) -> str:
    return str(row["Names"][0]).removeprefix("/")
