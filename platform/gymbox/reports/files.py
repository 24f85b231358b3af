"""Files: which files of a report are written where, each whole or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import BinaryIO, Literal

from gymbox.errors import ConfigError
from gymbox.evaluation.compare import Comparison, comparison, names_of
from gymbox.evaluation.rollouts import RunReader
from gymbox.evaluation.summary import LEVEL, SUCCESS
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
    page: PageOptions | None = None,
) -> Report:
    """Report on a run; or on several, each beside the first. What the options mean is told by `summary` and
    `comparison`, whose figures these are.

    Args:
        outputs: where to write which format.
        title: default: the runs' names.

    Raises:
        ConfigError: a line is damaged, the runs cannot be compared, or a file cannot be written.
    """
    compared: Comparison | None = None
    if len(readers) > 1:
        options = {"missing": missing, "success": success, "level": level}
        compared = comparison(readers, common=common, alpha=alpha, **options)  # type: ignore[arg-type]
    sources = [Source(reader, missing=missing, success=success, level=level, ks=ks) for reader in readers]
    names = names_of(readers)
    report = Report(
        title=title or " · ".join(names),
        made_at=datetime.now(UTC),
        gymbox=version("gymbox"),
        runs=[source.report(name) for source, name in zip(sources, names, strict=True)],
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
