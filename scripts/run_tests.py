"""Tests: run by pytest and measured; what fails is tried once more before it counts, and is named.

    run_tests.py FILE [ARGUMENT OF PYTEST…]
    run_tests.py FILE --side-by-side "ARGUMENTS OF PYTEST"…

The second form runs one pytest for each of what follows, at the same time: most tests wait for servers, containers and
clocks, so two cores have room for three. Their lines begin with their number.

Many tests kill, starve and race real processes: one that fails must fail again, with nothing beside it, to stop the
rest. A test that needed the second try is a fault all the same, in it or in what it tests: it is named on stderr, and
in FILE, which is empty where none did. The exit code is that of the last run of pytest, or the largest of those.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path

CACHE = Path(".pytest_cache")
TESTS_FAILED = 1
"""The exit code of pytest for this; others say that it could not do its work, which a second try would not mend."""
SIDE_BY_SIDE = "--side-by-side"


@dataclass
class Stream:
    """One pytest, its cache, and what is put before its lines."""

    arguments: list[str]
    cache: Path = CACHE
    prefix: str = ""
    code: int = field(default=0, init=False)

    @property
    def last_failed(self) -> Path:
        """Where pytest notes ids of what failed, also of what an earlier run left there and this one does not try."""
        return self.cache / "v" / "cache" / "lastfailed"

    def forget(self) -> None:
        """Takes away what earlier runs noted, unless this one is asked to read it."""
        if not {"--lf", "--last-failed", "--ff", "--failed-first"} & set(self.arguments):
            self.last_failed.unlink(missing_ok=True)

    def failed(self) -> list[str]:
        """Ids of what the last run noted as failed."""
        return sorted(json.loads(self.last_failed.read_text())) if self.last_failed.is_file() else []

    def run(self, *more: str) -> None:
        """Runs pytest; `code` is its exit code."""
        command = [sys.executable, "-m", "coverage", "run", "-m", "pytest", "-o", f"cache_dir={self.cache.absolute()}"]
        with subprocess.Popen(
            [*command, *more, *self.arguments],
            stdout=subprocess.PIPE if self.prefix else None,
            stderr=subprocess.STDOUT if self.prefix else None,
            encoding="utf-8",
            errors="replace",
        ) as process:
            for line in process.stdout or ():
                print(f"{self.prefix}{line}", end="", flush=True)
        self.code = process.returncode


def loud(title: str, names: list[str]) -> str:
    """Lines that are not overlooked."""
    rule = "!" * 100
    return "\n".join([rule, f"!! {title}:", *(f"!!   {name}" for name in names), rule])


def at_once(streams: list[Stream]) -> None:
    """Runs all at the same time."""
    threads = [threading.Thread(target=stream.run) for stream in streams]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main(file: Path, streams: list[Stream]) -> int:
    file.write_text("")
    for stream in streams:
        stream.forget()
    at_once(streams)
    again = [stream for stream in streams if stream.code == TESTS_FAILED and stream.failed()]
    names = sorted({name for stream in again for name in stream.failed()})
    if names:
        print(loud(f"again, the {len(names)} that failed", names), file=sys.stderr, flush=True)
    for stream in again:
        stream.run("--last-failed", "--last-failed-no-failures", "none")
    mended = sorted({*names}.difference(*(stream.failed() for stream in again)))
    if mended:
        said = loud(f"{len(mended)} passed only the second time: mend them", mended)
        file.write_text(f"{said}\n")
        print(said, file=sys.stderr, flush=True)
    return max(stream.code if stream.code >= 0 else TESTS_FAILED for stream in streams)


def streams_of(arguments: list[str]) -> list[Stream]:
    """What the command line asks for."""
    if arguments[:1] != [SIDE_BY_SIDE]:
        return [Stream(arguments)]
    return [
        Stream(shlex.split(each), CACHE / str(number), f"{number}| ") for number, each in enumerate(arguments[1:], 1)
    ]


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), streams_of(sys.argv[2:])))
