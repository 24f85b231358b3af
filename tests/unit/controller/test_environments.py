"""Environments of a controller: read again when their files have changed, and only then."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from gymbox.controller.environments import LoadedEnvironments
from gymbox.environment import Catalog
from gymbox.errors import ConfigError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "mine"
    (folder / "data").mkdir(parents=True)
    (folder / "environment.yaml").write_text("description: For a test.\n")
    (folder / "server.py").write_text("# nothing\n")
    return folder


def test_it_is_the_same_while_its_files_are(folder: Path) -> None:
    environments = LoadedEnvironments(Catalog([folder.parent]))
    first = environments("mine")
    (folder / "data" / "example.jsonl").write_text("{}\n")  # no part of its image

    assert environments("mine") is first


@pytest.mark.parametrize("change", ["edit", "add below", "link", "remove"])
def test_it_is_another_once_a_file_has_changed(folder: Path, change: str) -> None:
    environments = LoadedEnvironments(Catalog([folder.parent]))
    (folder / "extra.txt").write_text("extra\n")
    before = environments("mine").digest
    if change == "edit":
        (folder / "server.py").write_text("# something else\n")
    elif change == "add below":
        (folder / "lib").mkdir()
        (folder / "lib" / "more.py").write_text("")
    elif change == "link":
        os.symlink("server.py", folder / "linked.py")
    else:
        (folder / "extra.txt").unlink()

    assert environments("mine").digest != before


def test_one_that_is_gone_is_not_found(folder: Path) -> None:
    environments = LoadedEnvironments(Catalog([folder.parent]))
    environments("mine")
    folder.rename(folder.with_name("theirs"))
    with pytest.raises(ConfigError, match="no environment 'mine'"):
        environments("mine")
