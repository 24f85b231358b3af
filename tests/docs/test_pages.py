"""The documentation is true: its commands run, its links lead somewhere, its reference is what the code says."""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "environments").glob("*/README.md")])
RUNNABLE = [
    ROOT / "README.md",
    *(ROOT / "docs" / f"{name}.md" for name in ("tutorial", "how-to", "python-api", "sandboxes")),
]
FENCE = re.compile(r"^```(\w*)(?: file=(\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


@dataclass(frozen=True)
class Block:
    """A fenced block: `bash` is run, one with `file=` is written, others are left alone."""

    language: str
    file: str | None
    text: str


def blocks(page: Path) -> list[Block]:
    return [Block(*found) for found in FENCE.findall(page.read_text())]


@pytest.mark.parametrize("page", [page for page in RUNNABLE if page.exists()], ids=lambda page: page.name)
def test_every_command_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    (tmp_path / ".venv").symlink_to(ROOT / ".venv")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "HOME": str(tmp_path), "COLUMNS": "120"}
    for block in blocks(page):
        if block.file:
            target = tmp_path / block.file
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(block.text)
        elif block.language == "bash" and not block.text.startswith("make "):
            command = ["bash", "-euo", "pipefail", "-c", block.text]
            done = subprocess.run(
                command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240, check=False
            )
            assert done.returncode == 0, f"{block.text}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"


def test_the_make_targets_that_the_readme_names_exist() -> None:
    named = {target for block in blocks(ROOT / "README.md") for target in re.findall(r"^make (\w+)", block.text, re.M)}
    makefile = (ROOT / "Makefile").read_text()
    assert named == {"demo", "test"}
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in named)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    targets = [link for link in LINK.findall(page.read_text()) if "://" not in link and not link.startswith("mailto:")]
    for target in targets:
        name, _, anchor = target.partition("#")
        found = (page.parent / name).resolve() if name else page
        assert found.exists(), f"{page.name}: {target}"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", found.read_text(), re.MULTILINE)
            slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}
            assert anchor in slugs, f"{page.name}: {target}"


def test_the_reference_is_what_the_code_says() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "write_reference.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_table_of_the_reference_lists_each_field_once_as_one_writes_it() -> None:
    for page in sorted((ROOT / "docs" / "reference").glob("*.md")):
        for table in re.findall(r"^\| setting .*\n\|---.*\n((?:\|.*\n)+)", page.read_text(), re.MULTILINE):
            names = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
            assert len(names) == len(set(names)), f"{page.name}: {names}"
            assert not re.search(r"Annotated|InstanceOf|`True`|`False`|``", table), f"{page.name}: {table}"


def test_every_kind_of_error_and_every_limit_says_what_it_means() -> None:
    reference = ROOT / "docs" / "reference"
    kinds = (reference / "results.md").read_text().partition("## Kinds of errors")[2].partition("##")[0]
    manifest = (reference / "environment.md").read_text()
    rows = [row for row in (kinds + manifest).splitlines() if row.startswith("| `")]
    assert len(rows) > 30
    assert [row for row in rows if row.endswith("|  |") and "see below" not in row] == []
