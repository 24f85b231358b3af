"""Docker: a hardened container for each sandbox, on the engine of this machine.

A sandbox is reached over a unix socket in its directory, which is mounted into the container; it has no network, or
one that leads nowhere. Where the engine runs in a virtual machine of its own (Docker Desktop), unix sockets do not
pass the mount: there, run controller and proxy by compose beside it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from docker import APIClient
from gymbox_sandbox.options import User
from pydantic import ConfigDict, Field

from gymbox.environment import Environment
from gymbox.network import Traffic
from gymbox.providers import ModelsAt, OnEnd, StartSpec
from gymbox.providers.container import container_config, server_command
from gymbox.providers.containers import Containers
from gymbox.providers.egress import Egress
from gymbox.providers.forwarding import Forwarding
from gymbox.providers.images import Images
from gymbox.setup_base_image import BASE_IMAGE


class DockerProvider(Forwarding[Containers]):
    """Sandboxes as containers on this machine's Docker engine."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = "docker"
    host: str | None = None
    """Address of the engine (what DOCKER_HOST holds), which must be on this machine: sandboxes are reached over unix
    sockets. None: the usual socket."""
    base_image: str = BASE_IMAGE
    """What the sandbox runtime is built on: any Debian or Ubuntu with Python 3.12 or newer among its packages."""
    build_args: dict[str, str] = Field(default_factory=dict)
    """Arguments for the build of the runtime image, such as HTTP_PROXY."""
    build_timeout: float = Field(1800, gt=0)
    """Seconds that one image may take to build."""
    builds: int = Field(2, ge=1, le=32)
    """Images that are built at once."""
    build_folder: Path = Path("~/.cache/gymbox/images")
    """Where the logs of image builds are kept."""
    threads: int = Field(16, ge=1, le=256)
    """Calls to the engine at once."""

    async def open(self, controller_id: str, on_end: OnEnd) -> None:
        """See SandboxProvider. Also removes this controller's containers that do not run."""
        containers = Containers(self, controller_id, on_end)
        try:
            await containers.open()
        except BaseException:
            await containers.close()
            raise
        self._worker = containers

    def images(self, api: APIClient) -> Images:
        """The images of an engine, made by these settings."""
        folder = self.build_folder.expanduser()
        return Images(api, self.base_image, self.build_args, folder, self.build_timeout, self.builds)

    @property
    def versions(self) -> dict[str, str]:
        """The engine's, while it is open."""
        return {"docker": self._worker.engine.version} if self._worker else {}

    def base_of(self, environment: Environment) -> str | None:
        """The digest of what an environment's image is based on, once it was prepared; see Images."""
        return self._worker.base_of(environment) if self._worker else None

    def container(self, spec: StartSpec, image: str, controller_id: str, server: User) -> dict[str, Any]:
        """What the engine is asked to create; tests override it to see what happens when that goes wrong."""
        return container_config(spec, image, controller_id, server_command(spec.environment, server))

    def egress(self) -> Egress:
        """What decides about connections out of sandboxes; tests override it to have an internet of their own."""
        return Egress()

    def traffic(self, id: str) -> Traffic:
        """What a container was let through to and refused, while this is open."""
        return self._opened.egress.traffic(id)

    def lead_models(self, id: str, models: ModelsAt) -> None:
        """Send the model calls of a container there from now on, where its network lets them out."""
        self._opened.egress.lead_models(id, models)
