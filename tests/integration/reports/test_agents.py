"""A report of a run with several agents, as one has it in a browser."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.reports.conftest import Page, contrasts, line, solved

Run = Callable[..., Path]
Opened = Callable[..., Page]


@pytest.fixture
def crossed(run: Run) -> Path:
    """Two agents, each with two tries at eight tasks of two environments; one of them fails once."""
    lines = []
    for number in range(8):
        environment = "weather" if number % 2 == 0 else "counter"
        for agent, reward in (("slow", (number % 2) / 2), ("keen", 1.0 if number else 0.5)):
            for repeat in range(2):
                told = solved(f"task-{number}", repeat, reward, environment=environment, agent_ref={"name": agent})
                lines.append(told | {"rollout_id": f"{environment}.{agent}-{number}-{repeat}"})
    lines[6] |= {
        "reward": None,
        "response": None,
        "error": {"kind": "agent_failed", "stage": "agent", "detail": "fell"},
    }
    return run(*lines, rows=4, repeats=2, agents=["keen", "slow"], crossed=True)


def test_agents_of_one_run_stand_beside_one_another(crossed: Path, opened: Opened) -> None:
    page = opened(crossed)
    assert "2 agents · 8 tasks · 32 rollouts" in page.tab.inner_text("#subtitle")
    figures, compared = (table.inner_text() for table in page.tab.locator("#agents table").all())
    assert [" ".join(row.split()[:2]) for row in figures.splitlines()[1:]] == [
        *("keen counter", "slow counter", "keen weather", "slow weather", "keen all", "slow all"),
    ]
    assert "pass@2" in figures and "15 of 16" in figures
    assert "slow\tcounter\tno difference shown\t−0.500" in compared
    assert "pass@" not in page.tab.inner_text("#headline")
    for title in ("Rewards", "Success by tries", "Reward against cost"):
        legend = page.tab.locator("#plots figure").filter(has_text=title).locator(".legend")
        assert legend.first.inner_text().split() == ["keen", "slow"]


def test_one_agent_can_be_looked_at_alone(crossed: Path, opened: Opened) -> None:
    page = opened(crossed)
    assert page.count() == "16 of 16 tasks of 2 agents"
    assert ["slow" in row for row in page.rows()[:4]] == [False, True, False, True]
    page.tab.select_option("#agent", "keen")
    assert page.count().startswith("8 of 16")
    told = " ".join(page.tab.inner_text("#headline").split())
    assert "Mean reward 0.9" in told and "pass@2" in told and "15 with a reward, of 16 planned" in told
    assert not page.tab.is_visible("#agents") and not page.tab.is_visible("#by")
    page.tab.select_option("#scope", "weather")
    assert page.count().startswith("4 of 16")
    page.tab.select_option("#agent", "")
    page.tab.select_option("#by", "slow")
    assert page.count().startswith("4 of 16")
    assert "agent slow" in page.open_row(0).inner_text()


def test_a_bar_of_an_agent_chooses_its_rollouts(crossed: Path, opened: Opened) -> None:
    page = opened(crossed)
    page.tab.locator("#plots [aria-label^='slow: '][aria-label*='reward of 0.5']").click()
    assert page.tab.locator("#by").input_value() == "slow"
    assert page.count() == "8 of 32 rollouts"
    page.tab.locator("#plots [aria-label^='agent failed'][aria-label$='of keen']").click()
    assert page.count() == "1 of 32 rollouts"
    page.tab.click("#clear")
    assert page.count() == "32 of 32 rollouts"


def test_an_agent_has_one_colour_everywhere(run: Run, opened: Opened) -> None:
    lines = [solved("a", n, 1.0, agent_ref={"name": "two"}) | {"rollout_id": f"two-{n}"} for n in (0, 1)]
    lines += [line("a", n, agent_ref={"name": "one"}) | {"rollout_id": f"one-{n}"} for n in (0, 1)]
    page = opened(run(*lines, repeats=2, agents=["one", "two"], crossed=True))
    keys = page.tab.locator("#agents tbody .key")
    assert [keys.nth(at).get_attribute("class") for at in (0, 1)] == ["key one", "key two"]
    for name in ("Rewards", "Success by tries"):
        figure = page.tab.locator("#plots figure").filter(has_text=name).first
        assert figure.locator(".two").count() > 0 and figure.locator(".one").count() == 0, name
    assert page.tab.locator("#plots rect.one[aria-label*='agent failed']").count() == 1


def test_what_agents_made_of_a_task_can_be_read_side_by_side(crossed: Path, opened: Opened) -> None:
    page = opened(crossed, by_agent=True)
    assert page.tab.inner_text("#subtitle") == "2 agents, compared with run:keen"
    assert page.count() == "8 of 8 tasks"
    page.open_row(0)
    page.tab.wait_for_selector(".pane[data-side='1'][data-ready]")
    assert page.tab.locator(".pane-name").all_inner_texts() == ["run:keen", "run:slow"]
    assert page.tab.locator("#facts details").count() == 1


def test_of_two_runs_each_agent_is_compared_with_itself(crossed: Path, opened: Opened, tmp_path: Path) -> None:
    other = shutil.copytree(crossed, tmp_path / "after")
    page = opened(crossed, other)
    assert page.tab.inner_text("#subtitle") == "4 runs, each agent compared with itself"
    assert page.tab.locator("#pair option").all_inner_texts() == ["run:keen → after:keen", "run:slow → after:slow"]
    page.tab.select_option("#pair", label="run:slow → after:slow")
    assert page.tab.inner_text("#headline").count("0.000") > 0
    page.open_row(0)
    page.tab.wait_for_selector(".pane[data-side='1'][data-ready]")
    assert page.tab.locator(".pane-name").all_inner_texts() == ["run:slow", "after:slow"]


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize(("width", "height"), [(1280, 900), (390, 844)])
def test_agents_fit_the_window_and_can_be_read_in_both_themes(
    crossed: Path, opened: Opened, theme: str, width: int, height: int
) -> None:
    page = opened(crossed, width=width, height=height, theme=theme)
    assert page.overflow() <= 0
    assert contrasts(page) == []
