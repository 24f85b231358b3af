"""Tests: run by pytest and measured; what fails is tried once more before it counts, and is named.

    run_tests.py FILE [ARGUMENT OF PYTEST…]

Many tests kill, starve and race real processes: one that fails must fail again, alone, to stop the rest. A test that
needed the second try is a fault all the same, in it or in what it tests: it is named on stderr, and in FILE, which is
empty where none did. The exit code is that of the last run of pytest.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

LAST_FAILED = Path(".pytest_cache/v/cache/lastfailed")
"""Where pytest notes ids of what failed, also of what an earlier run left there and this one does not try."""
TESTS_FAILED = 1
"""The exit code of pytest for this; others say that it could not do its work, which a second try would not mend."""


def pytest(*arguments: str) -> int:
    """The exit code of a run."""
    return subprocess.run(
        [sys.executable, "-m", "coverage", "run", "-m", "pytest", *arguments], check=False
    ).returncode


def failed() -> list[str]:
    """Ids of what the last run noted as failed."""
    return sorted(json.loads(LAST_FAILED.read_text())) if LAST_FAILED.is_file() else []


def loud(title: str, names: list[str]) -> str:
    """Lines that are not overlooked."""
    rule = "!" * 100
    return "\n".join([rule, f"!! {title}:", *(f"!!   {name}" for name in names), rule])


def main(file: Path, arguments: list[str]) -> int:
    file.write_text("")
    if not {"--lf", "--last-failed", "--ff", "--failed-first"} & set(arguments):
        LAST_FAILED.unlink(missing_ok=True)
    code = pytest(*arguments)
    if code != TESTS_FAILED or not (names := failed()):
        return code
    print(loud(f"again, the {len(names)} that failed", names), file=sys.stderr, flush=True)
    code = pytest("--last-failed", "--last-failed-no-failures", "none", *arguments)
    mended = sorted({*names} - {*failed()})
    if mended:
        said = loud(f"{len(mended)} passed only the second time: mend them", mended)
        file.write_text(f"{said}\n")
        print(said, file=sys.stderr, flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
