"""Files: which files of a report are written where, each whole or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import BinaryIO, Literal

from gymbox.environment import Environment
from gymbox.errors import ConfigError
from gymbox.evaluation.compare import Comparison, comparison, names_of
from gymbox.evaluation.rollouts import RunReader
from gymbox.evaluation.summary import LEVEL, SUCCESS, Summary
from gymbox.evaluation.tallies import Missing
from gymbox.reports.markdown import markdown
from gymbox.reports.page import PageOptions, write_page
from gymbox.reports.report import Report
from gymbox.reports.sources import Source

Format = Literal["html", "md", "json"]
FORMATS: tuple[Format, ...] = ("html", "md", "json")


def write_report(
    readers: Sequence[RunReader],
    outputs: Mapping[Format, Path],
    *,
    title: str | None = None,
    missing: Missing = "excluded",
    success: float = SUCCESS,
    level: float = LEVEL,
    ks: Sequence[int] = (),
    alpha: float = 0.05,
    common: bool = False,
    by_agent: bool = False,
    by: str | None = None,
    environments: Callable[[Iterable[str]], Mapping[str, Environment]] = lambda names: {},
    own: bool = False,
    page: PageOptions | None = None,
) -> Report:
    """Report on a run; or on several, each beside the first. What the options mean is told by `summary` and
    `comparison`, whose figures these are.

    Args:
        outputs: where to write which format.
        title: default: the runs' names.
        by_agent: of one run with several agents: each of them beside the first.
        by: dotted path of a field in the lines whose values tell subsets apart.
        environments: finds those of these names that are at hand, for their key metrics.
        own: also run their own `compute_metrics`, in this process.

    Raises:
        ConfigError: a line is damaged, the runs or agents cannot be compared, an environment's own metrics fail, or a
            file cannot be written.
    """
    compared: Comparison | None = None
    if by_agent or len(readers) > 1:
        compared = comparison(readers, missing=missing, common=common, level=level, alpha=alpha, by=by)
    title = title or " · ".join(names_of(readers))
    sides = readers if compared is None else sides_of(readers)
    names = names_of(sides) if compared is None else [run.run for run in compared.runs]
    sources = [Source(reader, missing=missing, success=success, level=level, ks=ks, by=by) for reader in sides]
    of_agents = _of_agents(readers[0], sources[0].summary, alpha) if compared is None else None
    found = environments(sorted({name for source in sources for name in source.summary.environments}))
    report = Report(
        title=title,
        made_at=datetime.now(UTC),
        gymbox=version("gymbox"),
        by=by,
        runs=[
            source.report(name, found, own=own, compared=of_agents)
            for source, name in zip(sources, names, strict=True)
        ],
        comparison=compared,
    )
    for format, path in outputs.items():
        with whole(path) as file:
            if format == "html":
                write_page(file, report, sources, page or PageOptions())
            elif format == "md":
                file.write(markdown(report).encode())
            else:
                file.write(report.dumped(indent=1) + b"\n")
    return report


def sides_of(readers: Sequence[RunReader]) -> list[RunReader]:
    """The runs that are compared, in the order in which `comparison` has them: of runs with several agents, what each
    agent did."""
    return [RunReader(each.path, agent) for agent in readers[0].agents for each in readers] or list(readers)


def _of_agents(reader: RunReader, summary: Summary, alpha: float) -> Comparison | None:
    """The agents of a run with one another, on the tasks that they share; None where they are not to be compared, or
    have none in common yet."""
    if not reader.crossed or len(reader.agents) < 2:
        return None
    done: dict[str, dict[str, set[str]]] = {agent: {} for agent in reader.agents}
    for task in summary.tasks:
        done.setdefault(task.agent or "", {}).setdefault(task.environment, set()).add(task.task)
    first, *others = done.values()
    for other in others:
        both = first.keys() & other.keys()
        if not both or any(not first[name] & other[name] for name in both):
            return None
    return comparison([reader], missing=summary.missing_policy, common=True, level=summary.level, alpha=alpha)


@contextmanager
def whole(path: Path) -> Iterator[BinaryIO]:
    """A file beside `path` that takes its place at the end, on disk; where writing fails, nothing has changed.

    Raises:
        ConfigError: it cannot be written.
    """
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with beside.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}; give another place by --output") from error
    finally:
        beside.unlink(missing_ok=True)
