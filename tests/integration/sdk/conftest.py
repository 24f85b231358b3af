"""Sandboxes for programs, as processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from gymbox.runs.places import Places

ROOT = Path(__file__).parents[3]


@pytest.fixture
def places(state_folder: Path, token: str, tmp_path: Path) -> Places:
    return Places((ROOT / "environments",), state_folder, tmp_path / "cache", token)
