"""Pages of reports in a real browser, headless Chromium by Playwright."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from gymbox.evaluation.rollouts import RunReader
from gymbox.reports.files import write_report
from gymbox.setup_chromium import chromium

from tests.unit.evaluation.conftest import line, run

__all__ = ["line", "run"]
OPTIONS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]


@pytest.fixture(scope="module")  # not longer: its driver keeps a loop in this thread, where other tests have theirs
def browser() -> Iterator[Any]:
    """Skips where there is none, but not where main is judged."""
    path = chromium()
    if path is None:
        if os.environ.get("CI"):
            pytest.fail("no Chromium, and CI is set: `python -m gymbox.setup_chromium` installs it")
        pytest.skip("no Chromium; `python -m gymbox.setup_chromium` installs it")
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=OPTIONS)
        yield browser
        browser.close()


class Page:
    """A report as someone has it open; what it asks for and complains of is written down."""

    def __init__(self, tab: Any, path: Path) -> None:
        self.tab = tab
        self.path = path
        self.complaints: list[str] = []
        self.requests: list[str] = []
        tab.on("console", lambda said: self.complaints.append(f"{said.type}: {said.text}"))
        tab.on("pageerror", lambda error: self.complaints.append(str(error)))
        tab.on("dialog", lambda dialog: (self.complaints.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        tab.on("request", lambda request: self.requests.append(request.url))

    def open(self, fragment: str = "") -> Page:
        self.tab.goto(self.path.as_uri() + fragment)
        self.tab.wait_for_selector("html[data-ready]")
        return self

    def rows(self) -> list[str]:
        """Of each row in sight, its text."""
        return [str(text) for text in self.tab.locator("tr[data-at]").all_inner_texts()]

    def count(self) -> str:
        return str(self.tab.inner_text("#count"))

    def open_row(self, at: int) -> Any:
        """The reader of that row's rollout."""
        self.tab.locator(f'tr[data-at="{at}"]').click()
        return self.read()

    def read(self) -> Any:
        self.tab.wait_for_selector("#reader[open] .pane[data-ready]")
        return self.tab.locator("#reader")

    def overflow(self) -> int:
        """Pixels that the page is wider than its window."""
        return int(self.tab.evaluate("() => document.documentElement.scrollWidth - innerWidth"))


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Callable[..., Page]]:
    """Report on runs and open the page; at the end it must have asked for nothing and complained of nothing."""
    pages: list[Page] = []

    def make(
        *runs: Path, width: int = 1280, height: int = 900, theme: Literal["light", "dark"] = "light", **options: Any
    ) -> Page:
        path = tmp_path / "report.html"
        write_report([RunReader(run) for run in runs], {"html": path}, **options)
        size: dict[str, int] = {"width": width, "height": height}
        context = browser.new_context(viewport=size, color_scheme=theme, offline=True, reduced_motion="reduce")
        context.set_default_timeout(20_000)
        pages.append(Page(context.new_page(), path))
        return pages[-1].open()

    yield make
    for page in pages:
        page.tab.context.close()
        assert page.complaints == []
        assert {url.partition("#")[0] for url in page.requests} <= {page.path.as_uri(), "data:,"}
