"""Auto: containers where a Docker engine answers, else local processes, which is said in one loud line."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, PrivateAttr

from gymbox.environment import Environment
from gymbox.errors import Unavailable
from gymbox.providers import Found, OnEnd, OnPhase, SandboxProvider, Started, StartSpec
from gymbox.providers.docker import DockerProvider
from gymbox.providers.process import ProcessProvider

Running = list[Found]


class AutoProvider(BaseModel):
    """Chooses when it is opened; from then on it is the provider that it chose."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    docker: DockerProvider = DockerProvider()
    process: ProcessProvider = ProcessProvider()

    _chosen: SandboxProvider | None = PrivateAttr(None)

    @property
    def name(self) -> str:
        return self._chosen.name if self._chosen else "auto"

    @property
    def isolation_note(self) -> str:
        """What the chosen one says that its sandboxes lack; `""` if nothing."""
        return getattr(self._chosen, "isolation_note", "")

    async def open(self, controller_id: str, on_end: OnEnd) -> None:
        """
        Raises:
            Unavailable: neither can be used.
        """
        try:
            await self.docker.open(controller_id, on_end)
            self._chosen = self.docker
        except Unavailable as error:
            await self.process.open(controller_id, on_end, because=f"NO DOCKER ({error.detail.splitlines()[0]}): ")
            self._chosen = self.process

    async def close(self) -> None:
        chosen, self._chosen = self._chosen, None
        if chosen is not None:
            await chosen.close()

    async def prepare(self, environment: Environment) -> str | None:
        return await self._opened.prepare(environment)

    async def start(self, spec: StartSpec, on_phase: OnPhase) -> Started:
        return await self._opened.start(spec, on_phase)

    async def stop(self, id: str) -> None:
        await self._opened.stop(id)

    async def list(self) -> Running:
        return await self._opened.list()

    async def logs(self, id: str, tail: int = 100) -> str:
        return await self._opened.logs(id, tail)

    @property
    def _opened(self) -> SandboxProvider:
        if self._chosen is None:
            raise Unavailable("the provider is not open")
        return self._chosen
