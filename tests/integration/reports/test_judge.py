"""What a judge was asked about a rollout, as a report's reader shows it in a browser."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from gymbox.errors import ErrorKind, ModelFailure

from tests.integration.reports.conftest import Page, contrasts, line, solved
from tests.unit.judge.test_judge import asked
from tests.unit.reports.test_judgements import RIGHT, WRONG, judged, votes

Run = Callable[..., Path]
Opened = Callable[..., Page]
NASTY = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\u202e"


@pytest.fixture
def graded(run: Run) -> Path:
    failed = {"stage": "verify", "kind": "judge_failed", "detail": "a wrong key", "retryable": False, "logs": ""}
    folder = run(
        solved("a", 0, 1.0, sandbox="r-a") | {"metrics": {"judge_agreement": 2 / 3}},
        line("b", 0, None, sandbox="r-b") | {"error": failed},
        solved("c", 0, 1.0, sandbox="r-c"),
    )
    refused = ModelFailure(ErrorKind.MODEL_UNAUTHORIZED, "a wrong key")
    answers = [NASTY, RIGHT, WRONG, RIGHT, refused]
    return judged(folder, answers, ("r-a", votes(f"Is 2 = 2? {NASTY}", 3)), ("r-b", [asked("Is 1 = 2?")]))


def test_questions_votes_and_the_verdict_are_read_with_the_rollout(graded: Path, opened: Opened) -> None:
    reader = opened(graded).open_row(0)
    reader.get_by_text("What the judge was asked: 1 question, 4 answers").click()
    said = reader.locator(".judge").inner_text()
    for part in (
        *("What the verifier made of it: reward 1.000, agreement of its votes 66.7 %.", "You grade.", "Is 2 = 2?"),
        *("true × 2, false × 1", "Vote 1, asked again (2)", "not usable", "JSON was asked for", "it is the same"),
        *(NASTY.removesuffix("\u202e"), "\\u202e", "45 tokens"),
    ):
        assert part in " ".join(said.split()) or part in said, part
    assert reader.locator(".votes > li").count() == 4


def test_a_judge_that_failed_is_shown_at_once(graded: Path, opened: Opened) -> None:
    reader = opened(graded).open_row(1)
    said = reader.locator(".judge[open]").inner_text()
    for part in ("It gave no verdict, so there is no reward.", "Is 1 = 2?", "failed", "a wrong key"):
        assert part in said, part


def test_a_rollout_without_a_judge_shows_nothing_of_one(graded: Path, opened: Opened) -> None:
    assert opened(graded).open_row(2).locator(".judge").count() == 0


def test_what_a_judge_said_can_be_searched(graded: Path, opened: Opened) -> None:
    page = opened(graded)
    page.tab.fill("#search", "it is the same")
    page.tab.keyboard.press("Enter")
    page.tab.wait_for_selector("#count:has-text('whose trajectories hold the text')")
    assert page.count().startswith("1 of 3 tasks")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_it_fits_and_can_be_read(graded: Path, opened: Opened, theme: str, width: int) -> None:
    page = opened(graded, width=width, theme=theme)
    reader = page.open_row(0)
    reader.locator(".judge > summary").click()
    reader.locator(".question h3").scroll_into_view_if_needed()
    assert page.overflow() <= 0
    assert contrasts(page) == []
