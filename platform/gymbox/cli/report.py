"""`gymbox eval report`: a page about runs, and its twins."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from gymbox.cli.figures import policy
from gymbox.cli.options import Alpha, By, Common, Folders, Level, Missing_, Own, Success, Tries
from gymbox.cli.output import say
from gymbox.cli.readers import environments_named, reader_of
from gymbox.errors import ConfigError, nearest

if TYPE_CHECKING:
    from gymbox.evaluation.rollouts import RunReader
    from gymbox.reports.files import Format


def report(
    runs: list[Path] = typer.Argument(
        metavar="RUN[:AGENT]",
        help="Folders of runs, or JSONL files of rollouts, `RUN:AGENT` for one of several agents; each is compared "
        "with the first.",
    ),
    output: Path = typer.Option(
        None,
        "--output",
        "-o",
        help="File to write (default: `report.html` or `comparison.html` in the first run).",
    ),
    format: str = typer.Option(
        "", "--format", help="`html`, `md`, `json` or `all` (default: as the file's name ends)."
    ),
    title: str = typer.Option("", "--title", help="Default: the runs' names."),
    missing: str = Missing_,
    success: float = Success,
    level: float = Level,
    k: list[int] = Tries,
    alpha: float = Alpha,
    agents: bool = typer.Option(False, "--agents", help="Compare the agents of one run with the first of them."),
    common: bool = Common,
    by: str = By,
    own: bool = Own,
    folder: list[Path] = Folders,
    size: float = typer.Option(30, "--size", min=1, help="MB that the page may take; see docs/evaluation.md."),
    longest: int = typer.Option(20_000, "--longest", min=100, help="Characters of one text that the page shows."),
    answers: bool = typer.Option(True, help="Whether the page shows what only the verifier saw."),
) -> None:
    """Write a page about a run, or about several runs or agents compared: figures, plots, every trajectory.

    \b
    gymbox eval report runs/DIR
    gymbox eval report runs/before runs/after -o after.html
    gymbox eval report runs/DIR --agents
    gymbox eval report runs/DIR:small runs/DIR:big
    gymbox eval report runs/DIR --by verifier_metadata.level --own
    gymbox eval report runs/DIR --format all --no-answers

    One HTML file that needs no network and opens anywhere; Markdown and JSON have the same figures.
    """
    from gymbox.reports.files import write_report
    from gymbox.reports.page import PageOptions

    if agents and len(runs) > 1:
        raise ConfigError("--agents compares the agents of one run; of several, each agent is compared with itself")
    readers = [reader_of(run) for run in runs]
    outputs = report_files(readers, output, format, compared=agents or len(readers) > 1)
    write_report(
        readers,
        outputs,
        title=title or None,
        missing=policy(missing),
        success=success,
        level=level,
        ks=k,
        alpha=alpha,
        common=common,
        by_agent=agents,
        by=by or None,
        environments=lambda names: environments_named(names, folder, own=own),
        own=own,
        page=PageOptions(size=int(size * 1e6), text=longest, answers=answers),
    )
    for path in outputs.values():
        say(path)


def report_files(readers: list[RunReader], output: Path | None, format: str, *, compared: bool) -> dict[Format, Path]:
    """Where to write which format of a report.

    Raises:
        ConfigError: there is no such format, or the file's name says another one.
    """
    from gymbox.reports.files import FORMATS

    endings: dict[str, Format] = {f".{each}": each for each in FORMATS}
    first, agent = readers[0].path, readers[0].agent
    name = "comparison" if compared else f"report-{agent}" if agent else "report"
    path = output or (first / f"{name}.html" if first.is_dir() else first.with_suffix(f".{name}.html"))
    if output and output.is_dir():
        path = output / f"{name}.html"
    if format == "all":
        stem = path.with_suffix("") if path.suffix in endings else path
        return {each: stem.with_name(f"{stem.name}.{each}") for each in FORMATS}
    if format and format not in FORMATS:
        raise ConfigError(f"--format {format}: {nearest(format, [*FORMATS, 'all'])}")
    of_name = endings.get(path.suffix)
    if of_name is None and not format:
        raise ConfigError(f"--output {path}: end its name with {', '.join(endings)}, or say --format")
    wanted = next(each for each in FORMATS if each == (format or of_name))
    if output is None:
        path = path.with_suffix(f".{wanted}")
    elif of_name and of_name != wanted:
        raise ConfigError(f"--output {path} is no name for --format {wanted}")
    return {wanted: path}
