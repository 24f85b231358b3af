"""Subsets and environments' own metrics, as a report has them in a browser."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from gymbox.environment import Environment

from tests.integration.reports.conftest import Page, contrasts, solved

Run = Callable[..., Path]
Opened = Callable[..., Page]
MANIFEST = "name: counter\nserver: server.py\ndescription: Counts.\nkey_metrics: [steps, longest, unheard]\n"
CODE = """
def compute_metrics(rollouts):
    lengths = [len(line["response"]["output"]) for line in rollouts]
    return {"longest": max(lengths), "of": {"odd": 3, "even": [1, 2]}, "told": "</script><b>x"}
"""


@pytest.fixture
def counter(tmp_path: Path) -> dict[str, Environment]:
    folder = tmp_path / "counter"
    folder.mkdir()
    (folder / "environment.yaml").write_text(MANIFEST)
    (folder / "server.py").write_text("")
    (folder / "example.jsonl").write_text("")
    (folder / "metrics.py").write_text(CODE)
    return {"counter": Environment.load(folder)}


@pytest.fixture
def levels(run: Run) -> Callable[..., Path]:
    """Twelve tasks, four of each of three levels, tried twice."""

    def make(name: str, easy: float) -> Path:
        lines = [
            solved(f"task-{number:02}", repeat, easy if number % 3 == 0 else number % 2, level=f"level {number % 3}")
            for number in range(12)
            for repeat in range(2)
        ]
        return run(*lines, name=name, repeats=2)

    return make


def test_subsets_have_their_figures_and_list_their_tasks(levels: Callable[..., Path], opened: Opened) -> None:
    page = opened(levels("run", 0.25), by="level")
    table = page.tab.get_by_role("region", name="By level")
    assert [" ".join(row.inner_text().split()) for row in table.locator("tbody tr").all()] == [
        f"level {level} 4 8 of 8 {figures}"
        for level, figures in enumerate(
            [
                "0.250 ± 0.000 0.250 to 0.250 0.0 % 0.000 0.015 1.28k 2.8 s",
                "0.500 ± 0.250 0.000 to 1.000 50.0 % 0.500 0.015 1.28k 2.8 s",
                "0.500 ± 0.250 0.000 to 1.000 50.0 % 0.500 0.015 1.28k 2.8 s",
            ]
        )
    ]
    table.get_by_role("button", name="level 2").click()
    assert page.count() == "4 of 12 tasks"
    assert page.tab.locator("#subset").input_value() == "level 2"
    page.tab.click("#clear")
    assert page.count() == "12 of 12 tasks"
    page.tab.get_by_role("button", name="Rollouts", exact=True).click()
    page.tab.select_option("#subset", "level 0")
    assert page.count() == "8 of 24 rollouts"


def test_without_a_field_there_is_nothing_of_subsets(levels: Callable[..., Path], opened: Opened) -> None:
    page = opened(levels("run", 0.25))
    assert page.tab.locator("#subset").count() == 0
    assert "By " not in page.tab.inner_text("#details")


def test_key_metrics_are_in_the_headline_and_own_ones_below(
    levels: Callable[..., Path], opened: Opened, counter: dict[str, Environment]
) -> None:
    page = opened(levels("run", 0.25), environments=lambda names: counter, own=True)
    told = " ".join(page.tab.inner_text("#headline").split())
    assert "Key metrics steps 3 longest 4 unheard –" in told
    rows = page.tab.get_by_role("region", name="The environments' own metrics").locator("tbody tr").all()
    assert [" ".join(row.inner_text().split()) for row in rows] == [
        "longest 4",
        "of.odd 3",
        "of.even [1,2]",
        "told </script><b>x",
    ]


def test_a_comparison_tells_the_difference_of_each_subset_and_all_metrics(
    levels: Callable[..., Path], opened: Opened, counter: dict[str, Environment]
) -> None:
    runs = levels("before", 0.25), levels("after", 1.0)
    page = opened(*runs, by="level", environments=lambda names: counter, own=True)
    table = page.tab.get_by_role("region", name="By level: before → after")
    assert [" ".join(row.inner_text().split()) for row in table.locator("tbody tr").all()] == [
        "level 0 no difference shown +0.750 +0.750 to +0.750 0.375 0.250 → 1.000 4 4 0",
        "level 1 no difference shown 0.000 0.000 to 0.000 1 0.500 → 0.500 4 0 0",
        "level 2 no difference shown 0.000 0.000 to 0.000 1 0.500 → 0.500 4 0 0",
    ]
    table.get_by_role("button", name="level 0").click()
    assert page.count() == "4 of 12 tasks"
    assert "steps" in page.tab.get_by_role("region", name="Key metrics").inner_text()
    own = page.tab.get_by_role("region", name="The environments' own metrics").inner_text()
    assert " ".join(own.split()).startswith("metric before after longest 4 4 of.odd 3 3")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_they_fit_and_can_be_read(
    levels: Callable[..., Path], opened: Opened, counter: dict[str, Environment], theme: str, width: int
) -> None:
    page = opened(
        *(levels("run", 0.25), levels("other", 1.0))[: 1 if width < 1000 else 2],
        width=width,
        theme=theme,
        by="level",
        environments=lambda names: counter,
        own=True,
    )
    assert page.overflow() <= 0
    assert contrasts(page) == []
