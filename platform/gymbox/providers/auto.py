"""Auto: containers where a Docker engine answers, else local processes, which is said in one loud line."""

from __future__ import annotations

from pydantic import ConfigDict, PrivateAttr

from gymbox.environment import Environment
from gymbox.errors import Unavailable
from gymbox.network import Traffic
from gymbox.providers import (
    ModelsAt,
    OnEnd,
    SandboxProvider,
    base_of,
    containers_stay,
    lead_models,
    traffic_of,
    versions_of,
)
from gymbox.providers.docker import DockerProvider
from gymbox.providers.engine import WITHOUT
from gymbox.providers.forwarding import Forwarding
from gymbox.providers.process import ProcessProvider


class AutoProvider(Forwarding[SandboxProvider]):
    """Chooses when it is opened; from then on it is the provider that it chose."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    docker: DockerProvider = DockerProvider()
    process: ProcessProvider = ProcessProvider()

    _no_docker: str = PrivateAttr("")
    """Why there are no containers, and what mends it."""

    @property
    def name(self) -> str:
        return self._worker.name if self._worker else "auto"

    @property
    def isolation_note(self) -> str:
        """What the chosen one says that its sandboxes lack; `""` if nothing."""
        return getattr(self._worker, "isolation_note", "")

    @property
    def versions(self) -> dict[str, str]:
        """What the chosen one says."""
        return versions_of(self._worker) if self._worker else {}

    @property
    def containers_stay(self) -> bool:
        """What the chosen one says."""
        return self._worker is None or containers_stay(self._worker)

    def base_of(self, environment: Environment) -> str | None:
        """What the chosen one says."""
        return base_of(self._worker, environment) if self._worker else None

    def traffic(self, id: str) -> Traffic:
        """What the chosen one says."""
        return traffic_of(self._worker, id) if self._worker else Traffic()

    def lead_models(self, id: str, models: ModelsAt) -> None:
        """Has the chosen one do it, where it can."""
        if self._worker:
            lead_models(self._worker, id, models)

    async def open(self, controller_id: str, on_end: OnEnd) -> None:
        """
        Raises:
            Unavailable: neither can be used.
        """
        try:
            await self.docker.open(controller_id, on_end)
            self._worker, self._no_docker = self.docker, ""
        except Unavailable as error:
            self._no_docker = error.detail.removesuffix(f", or {WITHOUT}")
            await self.process.open(controller_id, on_end, because=f"NO DOCKER ({error.detail.splitlines()[0]}): ")
            self._worker = self.process

    async def prepare(self, environment: Environment) -> str | None:
        """See SandboxProvider.

        Raises:
            Unavailable: the environment asks for what only containers have, and there is no Docker engine; the text
                says of both what mends it.
        """
        if self._no_docker and (missing := self.process.lacks(environment)) is not None:
            raise Unavailable(f"{missing}; {self._no_docker}")
        return await super().prepare(environment)
