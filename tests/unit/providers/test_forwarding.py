"""A provider that forwards its verbs says so where nothing is there to do them."""

from __future__ import annotations

from pathlib import Path

import pytest
from gymbox.environment import Environment, Manifest
from gymbox.errors import Unavailable
from gymbox.providers import SandboxProvider, StartSpec
from gymbox.providers.auto import AutoProvider
from gymbox.providers.containers import Containers
from gymbox.providers.docker import DockerProvider
from gymbox.providers.egress import Egress

SPEC = StartSpec("any", Environment(Path("/environments/plain"), Manifest(name="plain", description="")), Path("/any"))


@pytest.mark.parametrize("provider", [DockerProvider(), AutoProvider()])
async def test_a_provider_that_is_not_open_refuses_and_may_be_closed(provider: SandboxProvider) -> None:
    with pytest.raises(Unavailable, match="not open"):
        await provider.list()
    with pytest.raises(Unavailable, match="not open"):
        await provider.stop("any")
    with pytest.raises(Unavailable, match="not open"):
        await provider.reopen(SPEC)
    await provider.close()


async def test_to_reopen_a_way_out_asks_the_engine_for_nothing() -> None:
    opened: list[str] = []

    class Way(Egress):
        async def open(self, spec: StartSpec) -> None:
            opened.append(spec.id)

    class Docker(DockerProvider):
        def egress(self) -> Egress:
            return Way()

    provider = Docker()
    provider._worker = Containers(provider, "c", lambda id, ended: None)  # which has connected to no engine
    await provider.reopen(SPEC)
    assert opened == ["any"]
