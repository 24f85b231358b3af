"""Page: one file that asks for nothing, in which no text can be more than text."""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

from gymbox.reports.page import SCRIPTS, STYLES
from gymbox.reports.report import Report

from tests.unit.reports.conftest import line, trajectories

Run = Callable[..., Path]
Reported = Callable[..., tuple[Report, str]]
MAKES_HTML_OR_CODE = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function"
NASTY = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"'&\u202e\u0000\ud800"


def test_no_text_of_a_run_stands_in_the_page_as_it_is(run: Run, reported: Reported) -> None:
    folder = run(line(NASTY, 0, 1.0, responses_create_params={"input": NASTY}, response={"output": [{"type": NASTY}]}))
    _, page = reported(folder, title=NASTY)
    assert "alert(1)</script>" not in page
    assert "<img" not in page
    assert html.escape("</script><script>alert(1)</script>") in page
    [told] = trajectories(page).values()
    assert told["asked"][0]["text"] == NASTY


def test_the_policy_lets_only_the_pages_own_script_run_and_nothing_be_fetched(run: Run, reported: Reported) -> None:
    _, page = reported(run(line("a", 0, 1.0)))
    [policy] = re.findall(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', page)
    said = dict(part.split(" ", 1) for part in policy.split("; "))
    assert said["default-src"] == "'none'"
    assert (said["require-trusted-types-for"], said["trusted-types"]) == ("'script'", "'none'")
    assert (said["base-uri"], said["form-action"]) == ("'none'", "'none'")
    [script] = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    [style] = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    for name, content in (("script-src", script), ("style-src", style)):
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert said[name] == f"'sha256-{digest}'"


def test_the_page_names_no_address_but_that_of_svg(run: Run, reported: Reported) -> None:
    _, page = reported(run(line("a", 0, 1.0)))
    assert set(re.findall(r"https?://[\w./-]+", page)) == {"http://www.w3.org/2000/svg"}


def test_the_script_comes_before_the_trajectories(run: Run, reported: Reported) -> None:
    _, page = reported(run(line("a", 0, 1.0)))
    assert page.index('id="rows-0"') < page.index("<script>(") < page.index('id="chunk-0-0"')


def test_every_asset_is_in_the_page_and_none_makes_html_of_text() -> None:
    assets = {entry.name for entry in (files("gymbox.reports") / "assets").iterdir()}
    used = {"page.html", *(f"{name}.js" for name in SCRIPTS), *(f"{name}.css" for name in STYLES)}
    assert assets == used
    for name in used:
        text = (files("gymbox.reports") / "assets" / name).read_text("utf-8")
        assert not re.search(MAKES_HTML_OR_CODE, text), name
