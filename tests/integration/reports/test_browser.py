"""A report as one has it in a browser: what it shows, how it is used, and what no text can make it do."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.reports.conftest import Page, line

Run = Callable[..., Path]
Opened = Callable[..., Page]
CONTRAST = 4.5
"""Of text and what is behind it: WCAG 2.1, level AA."""
CALL = {"type": "function_call", "call_id": "c1", "name": "add", "arguments": json.dumps({"by": 1, "why": "x" * 60})}


def answer(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


def solved(task: str, repeat: int, reward: float, **more: Any) -> dict[str, Any]:
    result = {"type": "function_call_output", "call_id": "c1", "output": "Error: no such thing" if reward < 1 else "2"}
    thought = {"type": "reasoning", "summary": [{"text": "let me see"}]}
    return line(
        *(task, repeat, reward),
        _ng_rollout_index=repeat,
        response={"output": [thought, CALL, result, answer(f"the answer to {task} is {repeat}")], "model": "m"},
        usage={"input_tokens": 1200, "output_tokens": 80},
        reward_components={"form": 0.5},
        metrics={"steps": 3},
        calls={"cost": 0.01 * (repeat + 1), "count": 2},
        began=1000.0 + repeat,
        timings={"provision": 0.5, "reset": 0.1, "agent": 2.0, "verify": 0.2, "total": 2.8},
        **more,
    )


@pytest.fixture
def mixed(run: Run) -> Path:
    """Thirty tasks of two environments, tried twice; some fail."""
    lines = []
    for number in range(30):
        environment = "weather" if number % 3 == 0 else "counter"
        for repeat in range(2):
            lines.append(solved(f"task-{number:02}", repeat, (number * 7 % 10) / 9, environment=environment))
    lines[7] = line("task-03", 1, environment="weather", _ng_rollout_index=1) | {
        "failed_attempts": [{"error": {"kind": "oom_killed", "stage": "agent", "detail": "too much"}, "timings": {}}]
    }
    return run(*lines, rows=15, repeats=2)


@pytest.fixture
def nasty(run: Run) -> Path:
    bad = "</script><script>alert(1)</script><img src=x onerror=alert(2)><a href='javascript:alert(3)'>x</a>"
    output = [
        {"type": "function_call", "call_id": bad, "name": bad, "arguments": bad},
        {"type": "function_call_output", "call_id": bad, "output": f"{bad}\u202egnp.exe\u0000\ud800 \U0001f642"},
        {"type": bad, "x": bad},
        answer(bad),
    ]
    error = {"kind": bad, "stage": bad, "detail": bad, "logs": bad, "retryable": False}
    return run(
        line(
            bad, 0, 1.0, environment=bad, response={"output": output}, reward_components={bad: 1.0}, metrics={bad: 1}
        ),
        line(f"{bad}2", 0, environment=bad) | {"error": error},
    )


def test_the_headline_has_the_figures(mixed: Path, opened: Opened) -> None:
    page = opened(mixed)
    told = " ".join(page.tab.inner_text("#headline").split())
    for part in (
        "Mean reward",
        "95 % interval",
        "Solved",
        "pass@2",
        "59 with a reward, of 60 planned",
        "1 without",
        "Cost",
    ):
        assert part in told, part
    assert page.tab.title() == "run – gymbox"
    assert page.tab.locator("#plots figure").count() == 5
    for figure in page.tab.locator("#plots figure").all():
        figure.locator("svg").wait_for()


def test_every_plot_tells_its_numbers_without_sight(mixed: Path, opened: Opened) -> None:
    page = opened(mixed)
    for figure in page.tab.locator("#plots figure").all():
        assert figure.locator("svg").first.get_attribute("aria-label")
        figure.locator("summary").click()
        assert figure.locator("details tbody tr").count() > 0


def test_an_environment_can_be_looked_at_alone(mixed: Path, opened: Opened) -> None:
    page = opened(mixed)
    page.tab.select_option("#scope", "weather")
    assert page.count() == "10 of 30 tasks"
    assert "19 with a reward, of 30 planned" in " ".join(page.tab.inner_text("#headline").split())


def test_search_and_filters_choose_rows(mixed: Path, opened: Opened) -> None:
    page = opened(mixed)
    page.tab.keyboard.press("/")
    page.tab.keyboard.type("task-07")
    assert page.count() == "1 of 30 tasks"
    page.tab.click("#clear")
    page.tab.get_by_role("button", name="Rollouts", exact=True).click()
    assert page.count() == "60 of 60 rollouts"
    page.tab.select_option("#outcome", "failed")
    assert page.count() == "1 of 60 rollouts"
    page.tab.click("#clear")
    page.tab.select_option("#kind", "agent_failed")
    assert "it fell" in page.rows()[0]
    page.tab.click("#clear")
    page.tab.fill("#low", "0.9")
    assert page.count() == "6 of 60 rollouts"
    page.tab.fill("#high", "0.95")
    assert page.count() == "0 of 60 rollouts"
    assert page.tab.is_visible("text=Nothing fits these filters.")


def test_what_trajectories_say_can_be_searched(mixed: Path, opened: Opened) -> None:
    page = opened(mixed)
    page.tab.fill("#search", "The answer to task-11")
    assert page.count() == "0 of 30 tasks"
    page.tab.keyboard.press("Enter")
    page.tab.wait_for_selector("#count:has-text('whose trajectories hold the text')")
    assert page.count().startswith("1 of 30 tasks")
    page.tab.fill("#search", "")
    assert page.count() == "30 of 30 tasks"


def test_columns_sort_either_way_and_unknown_comes_last(mixed: Path, opened: Opened) -> None:
    page = opened(mixed)
    page.tab.get_by_role("button", name="Rollouts", exact=True).click()
    reward = page.tab.get_by_role("button", name=re.compile("^reward"))
    firsts = []
    for way in ("ascending", "descending"):
        reward.click()
        assert page.tab.locator(f"th[aria-sort={way}]").inner_text().startswith("reward")
        firsts.append(page.rows()[0])
        page.tab.locator(".grid-scroll").evaluate("(frame) => frame.scrollTo(0, 1e6)")
        page.tab.wait_for_selector('tr[data-at="59"]')
        assert "agent failed" in page.rows()[-1]
    assert "0.000" in firsts[0]
    assert "1.000" in firsts[1]


def test_a_bar_of_a_plot_chooses_rollouts(mixed: Path, opened: Opened) -> None:
    page = opened(mixed)
    page.tab.locator("#plots [aria-label^='agent failed']").press("Enter")
    assert page.count() == "1 of 60 rollouts"
    page.tab.locator("#plots [aria-label*='reward of 0.95']").click()
    assert page.count() == "6 of 60 rollouts"


def test_a_rollout_is_read_with_all_that_is_known_of_it(mixed: Path, opened: Opened) -> None:
    page = opened(mixed)
    reader = page.open_row(1)
    said = reader.inner_text()
    for part in ("do task-01", "let me see", "calls add", '"by": 1', "error of add", "the answer to task-01 is 0"):
        assert part in said, part
    for part in ("provision 500 ms", "agent 2 s", "tokens in", "1.2k", "form", "steps", "not solved", "0.778"):
        assert part in said, part
    reader.get_by_role("button", name=re.compile("^2")).click()
    page.tab.wait_for_selector("text=the answer to task-01 is 1")


def test_a_failed_rollout_tells_why(mixed: Path, opened: Opened) -> None:
    page = opened(mixed)
    page.tab.select_option("#outcome", "failed")
    said = page.open_row(0).inner_text()
    for part in (
        *("agent failed (in its stage agent)", "it fell"),
        *("oom killed (in its stage agent): too much", "did not get to its end"),
    ):
        assert part in said, part


def test_the_page_is_used_by_keys_alone(mixed: Path, opened: Opened) -> None:
    page = opened(mixed)
    page.tab.locator("tr[data-at='0']").focus()
    page.tab.keyboard.press("ArrowDown")
    page.tab.keyboard.press("ArrowDown")
    page.tab.keyboard.press("Enter")
    assert page.read().locator("h2").inner_text() == "task-02"
    page.tab.keyboard.press("ArrowRight")
    assert page.read().locator("h2").inner_text() == "task-03"
    page.tab.keyboard.press("k")
    page.tab.keyboard.press("k")
    assert page.read().locator("h2").inner_text() == "task-01"
    page.tab.keyboard.press("Escape")
    page.tab.wait_for_selector("#reader", state="hidden")
    page.tab.wait_for_selector("tr[data-at='1']:focus")
    page.tab.keyboard.press("End")
    page.tab.wait_for_selector("tr[data-at='29']:focus")
    page.tab.keyboard.press("PageUp")
    page.tab.keyboard.press("Home")
    page.tab.wait_for_selector("tr[data-at='0']:focus")


def test_an_address_leads_to_a_rollout(mixed: Path, opened: Opened) -> None:
    page = opened(mixed)
    page.open_row(4)
    address = page.tab.evaluate("() => location.hash")
    assert address == "#rollout=counter-task-04-0"
    other = page.tab.context.new_page()
    other.goto(page.path.as_uri() + address)
    other.wait_for_selector("#reader[open] .pane[data-ready]")
    assert other.inner_text("#reader h2") == "task-04"


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize(("width", "height"), [(1280, 900), (390, 844)])
def test_it_fits_its_window_and_can_be_read_in_both_themes(
    mixed: Path, opened: Opened, theme: str, width: int, height: int
) -> None:
    page = opened(mixed, width=width, height=height, theme=theme)
    assert page.overflow() <= 0
    assert contrasts(page) == []
    page.open_row(1)
    assert page.overflow() <= 0
    assert (
        page.tab.evaluate(
            "() => { const pane = document.querySelector('.pane'); return pane.scrollWidth - pane.clientWidth; }"
        )
        <= 0
    )
    assert contrasts(page) == []


def test_the_theme_can_be_chosen(mixed: Path, opened: Opened) -> None:
    page = opened(mixed, theme="light")
    before = page.tab.evaluate("() => getComputedStyle(document.body).backgroundColor")
    page.tab.select_option("#theme", "dark")
    after = page.tab.evaluate("() => getComputedStyle(document.body).backgroundColor")
    assert (before, after) == ("rgb(245, 246, 248)", "rgb(13, 17, 23)")


def test_no_text_becomes_anything_but_text(nasty: Path, opened: Opened) -> None:
    page = opened(nasty, title="</title><script>alert(0)</script>")
    for at in (0, 1):
        said = page.open_row(at).inner_text()
        assert "<img src=x onerror=alert(2)>" in said
        page.tab.keyboard.press("Escape")
    page.tab.get_by_role("button", name="Rollouts", exact=True).click()
    assert page.tab.locator("img, iframe, a[href^='javascript'], script:not([type]):not(:only-of-type)").count() <= 1
    assert page.tab.locator("body script:not([type])").count() == 1
    page.tab.keyboard.press("Escape")
    page.open_row(0)
    assert [mark.inner_text() for mark in page.tab.locator(".step .unseen").all()] == ["\\u202e", "\\u0000", "\\ud800"]


def test_the_policy_stops_what_would_make_html_or_code_of_text(mixed: Path, opened: Opened) -> None:
    page = opened(mixed)
    refused = page.tab.evaluate(
        """() => {
            const made = document.createElement("script");
            const tried = {
                html: () => { document.body.innerHTML = "<p>x"; },
                frame: () => { document.createElement("iframe").srcdoc = "<p>x"; },
                code: () => { made.textContent = "window.ran = true"; },
            };
            document.body.append(made);
            const refused = (run) => { try { run(); return false; } catch { return true; } };
            return Object.keys(tried).filter((name) => refused(tried[name]));
        }"""
    )
    assert refused == ["html", "frame", "code"]
    assert page.tab.evaluate("() => window.ran") is None
    fetched = page.tab.evaluate("() => fetch('http://127.0.0.1:9/').then(() => 'sent', () => 'refused')")
    assert fetched == "refused"
    assert all("Content Security Policy" in said or "Trusted" in said for said in page.complaints)
    assert len(page.complaints) >= 2
    page.complaints.clear()


def test_a_huge_result_is_cut_and_says_where_all_of_it_is(run: Run, opened: Opened) -> None:
    huge = {"type": "function_call_output", "call_id": "c1", "output": "x" * 10_000_000 + " THE END"}
    page = opened(run(line("a", 0, 1.0, response={"output": [CALL, huge]})))
    assert page.path.stat().st_size < 300_000
    reader = page.open_row(0)
    reader.get_by_role("button", name="Show all 20,000 characters").click()
    said = reader.inner_text()
    assert "of 10,000,008 characters are left out here; all of it is in rollouts.jsonl, line 1" in said
    assert "THE END" in said


def test_ten_thousand_rows_are_a_few_elements(run: Run, opened: Opened, tmp_path: Path) -> None:
    path = tmp_path / "many.jsonl"
    with path.open("w") as file:
        for number in range(10_000):
            file.write(json.dumps(line(f"task-{number:05}", 0, number % 2)) + "\n")
    page = opened(path)
    assert page.count() == "10,000 of 10,000 tasks"
    assert page.tab.locator("tr[data-at]").count() < 100
    page.tab.locator("tr[data-at='0']").press("End")
    assert "task-09999" in page.rows()[-1]
    assert "do task-09999" in page.open_row(9_999).inner_text()


def test_a_comparison_shows_what_changed_and_both_trajectories(run: Run, opened: Opened) -> None:
    lines = [solved(f"task-{number:02}", 0, number % 2) for number in range(12)]
    better = [each | {"reward": 1.0} for each in lines[:-1]] + [lines[-1] | {"reward": 0.0}]
    page = opened(run(*lines, name="before"), run(*better, name="after"))
    told = page.tab.inner_text("#headline")
    for part in ("no difference shown", "+0.417", "6 tasks better, 1 worse", "exact McNemar test"):
        assert part in told, part
    assert "before" in page.tab.inner_text("#details")
    page.tab.select_option("#outcome", "worse")
    assert page.count() == "1 of 12 tasks"
    reader = page.open_row(0)
    page.tab.wait_for_selector(".pane[data-side='1'][data-ready]")
    assert [reader.locator(".pane").nth(side).locator(".badge").first.inner_text() for side in (0, 1)] == [
        "solved",
        "not solved",
    ]
    assert page.overflow() <= 0


def test_of_three_runs_the_one_to_compare_is_chosen(run: Run, opened: Opened) -> None:
    runs = [run(line("a", 0, value), line("b", 0, 1.0), name=f"r{value}") for value in (0.0, 0.5, 1.0)]
    page = opened(*runs)
    assert "+0.250" in page.tab.inner_text("#headline")
    page.tab.select_option("#pair", "2")
    assert "+0.500" in page.tab.inner_text("#headline")


def test_a_run_without_a_single_rollout_has_a_page_too(run: Run, opened: Opened) -> None:
    page = opened(run(rows=3))
    assert "Nothing fits" in page.tab.inner_text("#table")


def test_a_page_that_was_cut_off_says_so(mixed: Path, opened: Opened) -> None:
    page = opened(mixed)
    text = page.path.read_text()
    page.path.write_text(text[: text.index('id="chunk-0-0"')])
    page.open().tab.locator("tr[data-at='1']").click()
    page.tab.wait_for_selector("text=This rollout cannot be read: this file is not whole")


def test_on_paper_there_are_rows_and_no_controls(mixed: Path, opened: Opened) -> None:
    page = opened(mixed)
    assert len(page.tab.pdf()) > 10_000
    page.tab.emulate_media(media="print")
    assert not page.tab.is_visible("#filters")


def contrasts(page: Page) -> list[str]:
    """Texts in sight that are too much like what is behind them."""
    found: list[str] = page.tab.evaluate(Path(__file__).with_name("contrasts.js").read_text(), CONTRAST)
    return found
