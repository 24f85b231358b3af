"""File systems in files; that sandboxes keep to them is tested with containers."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from gymbox.errors import Unavailable
from gymbox.providers import disks
from gymbox.providers.disks import disk, make_file_system
from gymbox_sandbox.options import User


def test_a_file_system_is_empty_and_its_root_the_owners(tmp_path: Path) -> None:
    file = tmp_path / "disk"
    make_file_system(file, 16, 500, User(10001, 10002))
    assert file.stat().st_size == 16 << 20 and file.stat().st_blocks * 512 < 1 << 20  # it is sparse
    path = f"{os.environ['PATH']}:/usr/sbin"
    said = subprocess.run(
        ["debugfs", "-R", "ls -p /", str(file)], env={"PATH": path}, capture_output=True, text=True, check=True
    )
    rows = [line.split("/")[1:] for line in said.stdout.split()]
    assert [(row[2], row[3], row[4]) for row in rows] == [("10001", "10002", "."), ("10001", "10002", "..")]


def test_what_is_missing_is_told_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Unavailable, match="mke2fs made no file system"):
        make_file_system(tmp_path / "none", 0, 16, User(1, 1))
    with monkeypatch.context() as patch:
        patch.setattr(disks, "_environment", lambda: {"PATH": str(tmp_path)})
        with pytest.raises(Unavailable, match="apt-get install e2fsprogs"):
            make_file_system(tmp_path / "file", 16, 500, User(1, 1))
        patch.setattr(disks, "_environment", lambda: {})
        (tmp_path / "mke2fs").write_text("no program")
        (tmp_path / "mke2fs").chmod(0o755)
        patch.setattr(disks, "_environment", lambda: {"PATH": str(tmp_path)})
        with pytest.raises(Unavailable, match="Exec format error"):
            make_file_system(tmp_path / "file", 16, 500, User(1, 1))
    monkeypatch.setattr(disks, "_CONTROL", str(tmp_path / "no-loop-control"))
    with pytest.raises(Unavailable, match="workspace: memory"), disk(tmp_path / "disks", 16, 500, User(1, 1)):
        raise AssertionError("there is no device")
    assert os.listdir(tmp_path / "disks") == []


def test_a_machine_without_a_free_device_may_have_one_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disks, "_TRIES", 0)
    monkeypatch.setattr(disks, "_CONTROL", os.devnull)
    with pytest.raises(Unavailable, match="try again") as raised, disk(tmp_path, 16, 500, User(1, 1)):
        raise AssertionError("there is no device")
    assert raised.value.retry_after


@pytest.mark.skipif(not os.access("/dev/loop-control", os.W_OK), reason="only root has loop devices")
def test_a_device_is_free_again_where_nobody_mounts_it(tmp_path: Path) -> None:
    with disk(tmp_path, 16, 500, User(1, 1)) as device, disk(tmp_path, 16, 500, User(1, 1)) as other:
        assert device != other
        name = device.rpartition("/")[2]
        assert Path(f"/sys/block/{name}/loop/backing_file").read_text().strip().endswith("(deleted)")
    assert os.listdir(tmp_path) == []
    backing = Path(f"/sys/block/{name}/loop/backing_file")
    assert not backing.exists() or str(tmp_path) not in backing.read_text()
