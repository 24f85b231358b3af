"""`gymbox dev`: for work on gymbox itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import typer

from gymbox.errors import ConfigError

app = typer.Typer(add_completion=False, no_args_is_help=True, rich_markup_mode=None, help="For work on gymbox itself.")

ROOT = Path(__file__).resolve().parents[3]


@app.callback()
def dev() -> None:
    """For work on gymbox itself: run its tests."""


@app.command(context_settings={"ignore_unknown_options": True})
def test(arguments: list[str] = typer.Argument(None, metavar="[ARGUMENT]...", help="Arguments of pytest.")) -> None:
    """Run gymbox's own tests; what follows goes to pytest (`gymbox dev test tests/unit -x`)."""
    if not (ROOT / "tests").is_dir():
        raise ConfigError(f"{ROOT} has no tests: this gymbox is installed from a package; run it from a checkout")
    done = subprocess.run([sys.executable, "-m", "pytest", *(arguments or [])], cwd=ROOT, check=False)
    raise typer.Exit(done.returncode)
