"""The pre-commit hooks: their scripts, and the whole configuration run by pre-commit itself."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
MARKERS = "<!-- environments:start -->\n<!-- environments:end -->\n"


def run_script(name: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / "scripts" / name, *arguments]
    return subprocess.run(command, env=without_git(), capture_output=True, text=True, check=False)


def without_git() -> dict[str, str]:
    """Our environment variables, but not those by which a git hook that runs these tests points at its repository."""
    return {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}


def an_environment(repository: Path, name: str, manifest: str, rows: str = "") -> Path:
    folder = repository / "environments" / name
    (folder / "data").mkdir(parents=True)
    (folder / "environment.yaml").write_text(manifest)
    (folder / "data" / "example.jsonl").write_text(rows)
    return folder / "environment.yaml"


def test_a_manifest_without_the_flag_gets_it_and_keeps_comments_and_formatting(tmp_path: Path) -> None:
    before = "# what it is for\ndescription:   'Spaced  out'   # kept\nlimits: {pids: 64}\n"
    path = an_environment(tmp_path, "new", before)

    ran = run_script("add_verified_flag.py", path)

    assert ran.returncode == 1 and "added" in ran.stdout
    assert path.read_text() == before + "verified: false\n"
    assert run_script("add_verified_flag.py", path).returncode == 0


@pytest.mark.parametrize("flag", ["true", "false"])
def test_a_manifest_that_has_the_flag_is_left_alone(tmp_path: Path, flag: str) -> None:
    path = an_environment(tmp_path, "old", f"verified: {flag}\ndescription: x\n")
    assert run_script("add_verified_flag.py", path).returncode == 0
    assert path.read_text() == f"verified: {flag}\ndescription: x\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("description: x", "description: x\nverified: false\n"),
        ("description: x\r\n", "description: x\r\nverified: false\r\n"),
        ("description: |\n  several\n  lines\n", "description: |\n  several\n  lines\nverified: false\n"),
    ],
    ids=["no newline at the end", "windows line ends", "ends in a block"],
)
def test_the_flag_is_a_line_of_its_own(tmp_path: Path, before: str, after: str) -> None:
    path = an_environment(tmp_path, "new", "")
    path.write_bytes(before.encode())
    assert run_script("add_verified_flag.py", path).returncode == 1
    assert path.read_bytes().decode() == after


@pytest.mark.parametrize("content", ["{description: x}\n", "- a\n- b\n", "a: [\n"], ids=["flow", "list", "not yaml"])
def test_what_no_line_can_be_appended_to_is_reported_and_left_alone(tmp_path: Path, content: str) -> None:
    path = an_environment(tmp_path, "odd", content)
    ran = run_script("add_verified_flag.py", path)
    assert ran.returncode == 1 and str(path) in ran.stdout
    assert path.read_text() == content


def test_the_table_lists_every_environment_with_its_number_of_tasks(tmp_path: Path) -> None:
    an_environment(tmp_path, "beta", "description: Second | one\nverified: true\ndomain: math\n", "{}\n{}\n\n{}")
    an_environment(tmp_path, "alpha", "description: First\nlicense: MIT\n")
    (tmp_path / "README.md").write_text(f"# Title\n{MARKERS}the rest\n")

    ran = run_script("update_readme_table.py", tmp_path)

    assert ran.returncode == 1
    assert (tmp_path / "README.md").read_text() == (
        "# Title\n<!-- environments:start -->\n"
        "| Environment | Domain | Description | Tasks | Verified | License |\n"
        "| --- | --- | --- | --- | --- | --- |\n"
        "| [alpha](environments/alpha) | other | First | 0 | no | MIT |\n"
        "| [beta](environments/beta) | math | Second \\| one | 3 | yes | Apache-2.0 |\n"
        "<!-- environments:end -->\nthe rest\n"
    )
    assert run_script("update_readme_table.py", tmp_path).returncode == 0


def test_an_environment_that_git_does_not_track_is_left_out_and_named(tmp_path: Path) -> None:
    an_environment(tmp_path, "shipped", "description: x\n")
    an_environment(tmp_path, "under_way", "description: [\n")
    (tmp_path / "README.md").write_text(MARKERS)
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "environments/shipped")

    ran = run_script("update_readme_table.py", tmp_path)

    readme = (tmp_path / "README.md").read_text()
    assert "[shipped]" in readme and "under_way" not in readme
    assert ran.returncode == 1 and "does not track it: under_way" in ran.stdout


def test_an_environment_without_a_dataset_has_no_tasks(tmp_path: Path) -> None:
    an_environment(tmp_path, "bare", "description: x\ndataset: data/none.jsonl\n")
    (tmp_path / "README.md").write_text(MARKERS)
    assert run_script("update_readme_table.py", tmp_path).returncode == 1
    assert "| x | 0 | no |" in (tmp_path / "README.md").read_text()


@pytest.mark.parametrize(
    "readme", ["# no markers\n", MARKERS * 2, "<!-- environments:end --><!-- environments:start -->"]
)
def test_a_readme_without_the_two_markers_is_reported_and_left_alone(tmp_path: Path, readme: str) -> None:
    (tmp_path / "README.md").write_text(readme)
    ran = run_script("update_readme_table.py", tmp_path)
    assert ran.returncode == 1 and "environments:start" in ran.stdout
    assert (tmp_path / "README.md").read_text() == readme


def test_a_wrong_manifest_is_reported(tmp_path: Path) -> None:
    an_environment(tmp_path, "typo", "description: x\nlicence: MIT\n")
    (tmp_path / "README.md").write_text(MARKERS)
    ran = run_script("update_readme_table.py", tmp_path)
    assert ran.returncode == 1 and "license" in ran.stdout


def test_pre_commit_mends_a_new_environment_and_then_passes(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    shutil.copytree(ROOT / "scripts", repository / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / ".pre-commit-config.yaml", repository)
    shutil.copy(ROOT / "pyproject.toml", repository)
    (repository / ".venv").symlink_to(sys.prefix)
    (repository / ".gitignore").write_text(".venv\n")
    (repository / "README.md").write_text(MARKERS)
    path = an_environment(repository, "fresh", "description: A new one\n")
    server = path.with_name("server.py")
    server.write_text("import os\nx = {'a':1}\n")
    git(repository, "init", "-q")
    git(repository, "add", "-A")

    first = pre_commit(repository)
    git(repository, "add", "-A")
    second = pre_commit(repository)

    assert first.returncode == 1, first.stdout
    assert path.read_text() == "description: A new one\nverified: false\n"
    assert "[fresh](environments/fresh) | other | A new one | 0 | no |" in (repository / "README.md").read_text()
    assert server.read_text() == 'x = {"a": 1}\n'
    assert second.returncode == 0, second.stdout


def git(repository: Path, *arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=repository, env=without_git(), check=True, capture_output=True)


def pre_commit(repository: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pre_commit", "run", "--all-files", "--color=never"],
        cwd=repository,
        env=without_git() | {"PRE_COMMIT_HOME": str(repository.parent / "pre-commit")},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_table_in_our_own_readme_is_up_to_date(tmp_path: Path) -> None:
    tracked = subprocess.run(
        ["git", "ls-files", "README.md", "environments"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()  # and not an environment that somebody has under way
    for name in tracked:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    assert run_script("update_readme_table.py", tmp_path).returncode == 0
