"""A provider that forwards its verbs says so where nothing is there to do them."""

from __future__ import annotations

import pytest
from gymbox.errors import Unavailable
from gymbox.providers import SandboxProvider
from gymbox.providers.auto import AutoProvider
from gymbox.providers.docker import DockerProvider


@pytest.mark.parametrize("provider", [DockerProvider(), AutoProvider()])
async def test_a_provider_that_is_not_open_refuses_and_may_be_closed(provider: SandboxProvider) -> None:
    with pytest.raises(Unavailable, match="not open"):
        await provider.list()
    with pytest.raises(Unavailable, match="not open"):
        await provider.stop("any")
    await provider.close()
