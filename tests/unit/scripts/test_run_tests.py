"""A test that fails once and then passes is let through, loudly."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SHAKY = """
from pathlib import Path

def test_shaky():
    before = Path("tried").exists()
    Path("tried").touch()
    assert before

def test_steady():
    assert Path("steady").open("a").write("x")
"""
BROKEN = "def test_broken():\n    assert False\n"


def run(folder: Path, *arguments: str, **files: str) -> subprocess.CompletedProcess[str]:
    for name, content in files.items():
        (folder / f"{name}.py").write_text(content)
    unmeasured = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    return subprocess.run(
        [sys.executable, ROOT / "scripts" / "run_tests.py", "second-time", *arguments],
        cwd=folder,
        env=unmeasured,
        capture_output=True,
        text=True,
        check=False,
    )


def test_what_passes_only_the_second_time_is_named_and_nothing_else_is_run_again(tmp_path: Path) -> None:
    ran = run(tmp_path, test_some=SHAKY)

    assert ran.returncode == 0, ran.stdout
    assert "1 passed only the second time" in ran.stderr and "test_some.py::test_shaky" in ran.stderr
    assert "test_some.py::test_shaky" in (tmp_path / "second-time").read_text()
    assert (tmp_path / "steady").read_text() == "x"


def test_what_fails_twice_counts_and_is_not_said_to_have_passed(tmp_path: Path) -> None:
    ran = run(tmp_path, test_some=SHAKY, test_other=BROKEN)

    assert ran.returncode == 1
    assert "again, the 2 that failed" in ran.stderr
    assert "test_broken" not in (tmp_path / "second-time").read_text()


def test_where_all_pass_nothing_is_said_of_failures_long_ago(tmp_path: Path) -> None:
    run(tmp_path, test_other=BROKEN)
    (tmp_path / "test_other.py").unlink()

    ran = run(tmp_path, test_some="def test_good():\n    pass\n")

    assert ran.returncode == 0 and "!!" not in ran.stderr
    assert (tmp_path / "second-time").read_text() == ""


def test_what_cannot_be_collected_is_not_tried_again(tmp_path: Path) -> None:
    ran = run(tmp_path, test_other="import no_such_module\n")
    assert ran.returncode == 2 and "again" not in ran.stderr


def test_side_by_side_each_runs_its_own_and_tries_again_only_what_failed_in_it(tmp_path: Path) -> None:
    both = "from pathlib import Path\nimport time\n\ndef test_meets():\n" + "".join(
        f"    {line}\n"
        for line in (
            "Path(f'here-{NAME}').touch()",
            "ends = time.monotonic() + 20",
            "while not Path(f'here-{OTHER}').exists():",
            "    assert time.monotonic() < ends",
            "    time.sleep(0.01)",
        )
    )
    ran = run(
        tmp_path,
        "--side-by-side",
        "test_one.py",
        "test_two.py -q",
        "test_shaky.py test_fine.py",
        test_one=f"NAME, OTHER = 'one', 'two'\n{both}",
        test_two=f"NAME, OTHER = 'two', 'one'\n{both}",
        test_shaky=SHAKY,
        test_fine="def test_fine():\n    pass\n",
    )

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "1 passed only the second time" in ran.stderr and "test_shaky.py::test_shaky" in ran.stderr
    assert (tmp_path / "steady").read_text() == "x"
    assert {line[:3] for line in ran.stdout.splitlines()} == {"1| ", "2| ", "3| "}


def test_side_by_side_one_that_fails_twice_counts_whatever_the_others_say(tmp_path: Path) -> None:
    good = "def test_good():\n    pass\n"
    ran = run(
        tmp_path, "--side-by-side", "test_a.py", "test_b.py", "test_c.py", test_a=good, test_b=BROKEN, test_c=good
    )

    assert ran.returncode == 1
    assert "test_b.py::test_broken" in ran.stderr
    assert (tmp_path / "second-time").read_text() == ""
