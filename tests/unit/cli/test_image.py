"""`gymbox image`: what it takes."""

from __future__ import annotations

import pytest
from gymbox.cli import main
from gymbox.cli.image import duration
from gymbox.errors import ConfigError


@pytest.mark.parametrize(("text", "seconds"), [("0", 0), ("90s", 90), ("1.5m", 90), ("2h", 7200), ("7d", 604_800)])
def test_a_time_has_a_unit(text: str, seconds: float) -> None:
    assert duration(text) == seconds


@pytest.mark.parametrize("text", ["", "7", "-1d", "1y", "d", "1d2h", "nan"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="no time"):
        duration(text)


def test_a_provider_without_images_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["image", "ls", "provider=process"])
    assert ended.value.code == 2
    assert "provider=process has no images" in capsys.readouterr().err


def test_an_engine_that_does_not_answer_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["image", "ls", "provider=docker", "provider.host=unix:///nowhere.sock"])
    assert ended.value.code == 1
    assert "no Docker engine answers at unix:///nowhere.sock" in capsys.readouterr().err
