"""What tests of several kinds need: the engine of this machine."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import docker
import pytest


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """A command that ran in this process leaves no handler behind, whose stream is closed by then."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    for handler in [each for each in root.handlers if each not in handlers]:
        root.removeHandler(handler)
    root.setLevel(level)


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
