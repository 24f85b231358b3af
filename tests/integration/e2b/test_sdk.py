"""E2B's own SDK, as a foreign program: it knows an address and a key, and nothing of gymbox."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

Run = Callable[..., Awaitable[str]]


@pytest.mark.parametrize("checks", ["sdk_sync.py", "sdk_async.py"])
async def test_the_sdk_uses_sandboxes(sdk: Run, checks: str) -> None:
    said = await sdk(checks)
    assert " passed" in said and "skipped" not in said
