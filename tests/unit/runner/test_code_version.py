from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from gymbox import __version__
from gymbox.code_version import code_version

WHO = ["-c", "user.name=me", "-c", "user.email=me@example.org"]


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *WHO, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "checkout"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    git(folder, "commit", "-q", "--allow-empty", "-m", "first")
    return folder


def expected(folder: Path) -> str:
    return f"{__version__}+g{git(folder, 'rev-parse', 'HEAD')[:12]}"


def test_of_a_checkout_it_has_the_commit(checkout: Path) -> None:
    assert code_version(checkout) == expected(checkout)


def test_a_branch_may_be_packed_or_there_may_be_none(checkout: Path) -> None:
    git(checkout, "pack-refs", "--all")
    assert code_version(checkout) == expected(checkout)
    git(checkout, "checkout", "-q", "--detach")
    assert code_version(checkout) == expected(checkout)


def test_a_second_working_tree_has_a_commit_of_its_own(checkout: Path, tmp_path: Path) -> None:
    git(checkout, "worktree", "add", "-q", "-b", "other", str(tmp_path / "second"))
    git(tmp_path / "second", "commit", "-q", "--allow-empty", "-m", "second")
    assert code_version(tmp_path / "second") == expected(tmp_path / "second") != code_version(checkout)


def test_without_a_checkout_it_is_the_version(tmp_path: Path) -> None:
    assert code_version(tmp_path) == __version__
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "HEAD").write_text("ref: refs/heads/unborn\n")
    assert code_version(tmp_path) == __version__
