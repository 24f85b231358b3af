"""What a program says of a run is checked before anything is looked at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymbox
import pytest
from gymbox.errors import ConfigError
from gymbox.runs.places import Places


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"ahead": "x"}, "ahead='x': write how many"),
        ({"ahead": 0}, "ahead=0: write how many"),
        ({"ahead": True}, "ahead=True: write how many"),
        ({"max_staleness": 1.5}, "max_staleness=1.5: write a whole number"),
        ({"max_staleness": -1}, "max_staleness=-1: write a whole number"),
        ({"stale": "skip"}, "stale='skip': write 'mask' or 'drop'"),
        ({"rows": 5}, "rows=5: give a list of rows"),
        ({"environment": 5}, "environment: 5 is no name, folder or Environment"),
        ({"environment": None}, "environment: None is no name, folder or Environment"),
        ({"overrides": [5]}, "overrides: 5 is no text"),
        ({"overrides": "runner.limit=3"}, "overrides: give a list of texts"),
        ({"config_dirs": ["conf"]}, r"config_dirs: 'conf' is no Path"),
    ],
)
@pytest.mark.parametrize("run", [gymbox.run, gymbox.run_sync])
def test_what_is_of_another_type_is_refused_by_name(
    run: Any, tmp_path: Path, given: dict[str, Any], said: str
) -> None:
    places = Places((tmp_path,), tmp_path / "state", tmp_path / "cache", "token")
    with pytest.raises(ConfigError, match=said):
        run(**{"environment": "counter", "places": places, **given})
    assert list(tmp_path.iterdir()) == []
