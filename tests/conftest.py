"""What tests of several kinds need: the engine of this machine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import docker
import pytest


@pytest.fixture(scope="session")
def engine() -> Iterator[Any]:
    """The SDK's client, to look at the engine from the side; skips where there is no engine."""
    try:
        client = docker.from_env(timeout=60)
        client.ping()
    except Exception as error:
        pytest.skip(f"no Docker engine answers: {error}")
    yield client
    client.close()
