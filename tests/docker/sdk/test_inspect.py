"""Inspect's own checks of a provider, against containers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tests.own_venv import interpreter_with, ran

CHECKS = Path(__file__).parents[2] / "integration" / "sdk" / "inspect_checks.py"
SCOPE = "loop_scope=module"


async def test_the_provider_passes_the_checks_of_inspect(engine: Any) -> None:
    options = ("-q", "--noconftest", "-p", "no:cacheprovider", "-o", "asyncio_mode=auto")
    scopes = ("-o", f"asyncio_default_test_{SCOPE}", "-o", f"asyncio_default_fixture_{SCOPE}")
    told = await ran(
        *(interpreter_with("inspect"), "-m", "pytest", str(CHECKS), *options, *scopes),
        PROVIDER="docker",
        IMAGE="debian:trixie-slim",
    )
    passed = re.search(r"(\d+) passed, 1 xfailed", told)
    assert passed and int(passed[1]) >= 48, told
