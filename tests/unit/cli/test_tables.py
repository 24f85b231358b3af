from __future__ import annotations

import pytest
from gymbox.cli.env import print_table

ID, TEXT = "environment-0123456789abcdef", "words that say what it is " * 8
ROW = [ID, TEXT]


def test_a_table_that_no_terminal_shows_is_whole(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["id", "text"], [ROW])

    heading, line = capsys.readouterr().out.splitlines()
    assert heading.split() == ["id", "text"] and line.split("  ", 1) == [ID, TEXT.ljust(len(TEXT))]


@pytest.mark.parametrize("columns", [40, 100])
def test_on_a_terminal_ids_stay_whole_and_the_rest_is_folded(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(columns))
    print_table(["id", "text"], [ROW])

    _, first, *others = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{ID}  words") and len(others) > 1
    words = " ".join([first.removeprefix(ID), *others]).split()
    assert words == TEXT.split()


def test_markup_in_a_cell_is_text(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["id", "text"], [["a", "[bold]x[/bold]"]])

    assert "[bold]x[/bold]" in capsys.readouterr().out
