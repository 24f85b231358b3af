"""Sandboxes' directories, made and removed for real."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from gymbox.providers.directories import make_directory, remove_directory
from gymbox_sandbox.options import User

NOBODY = 65534


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder of ours, and we are not root, whom no mode stops."""
    root = os.geteuid() == 0
    folder = Path(tempfile.mkdtemp(prefix="gymbox-test-"))
    if root:
        os.chown(folder, NOBODY, NOBODY)
        os.seteuid(NOBODY)
    yield folder
    if root:
        os.seteuid(0)
    shutil.rmtree(folder)


def test_it_is_for_our_own_user_alone(folder: Path) -> None:
    make_directory(folder / "made", None)
    make_directory(folder / "made", None)
    assert stat.S_IMODE((folder / "made").stat().st_mode) == 0o700


@pytest.mark.skipif(os.getuid() != 0, reason="giving things away takes root")
def test_or_for_the_server_and_its_group(tmp_path: Path) -> None:
    make_directory(tmp_path / "new" / "made", User(10002, 10003))
    made = (tmp_path / "new" / "made").stat()
    assert (made.st_uid, made.st_gid, stat.S_IMODE(made.st_mode)) == (10002, 10003, 0o2770)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o711


def test_what_is_closed_to_us_is_removed_too(folder: Path) -> None:
    deep = folder / "made" / "shut" / "deeper"
    deep.mkdir(parents=True)
    (deep / "file").touch()
    (folder / "elsewhere").mkdir()
    (folder / "made" / "link").symlink_to(folder / "elsewhere")
    for closed in (deep, deep.parent, folder / "made"):
        closed.chmod(0)
    remove_directory(folder / "made")
    remove_directory(folder / "made")
    assert [path.name for path in folder.iterdir()] == ["elsewhere"]


def test_what_cannot_be_removed_is_told(folder: Path) -> None:
    (folder / "file").touch()
    with pytest.raises(OSError, match="file"):
        remove_directory(folder / "file")
