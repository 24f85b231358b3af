"""What is taken from a sandbox's server, and lent to it, whatever that does meanwhile."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from gymbox.controller.handover import in_thread, keep_copy, made_for
from gymbox.errors import Invalid


def test_a_copy_is_whole_where_the_kernel_does_not_make_it_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def elsewhere(*_: Any) -> int:
        raise OSError(errno.EXDEV, "another file system")

    monkeypatch.setattr(os, "copy_file_range", elsewhere)
    with made_for(tmp_path.stat(), str(tmp_path / "given")) as file:
        (tmp_path / "given").write_bytes(content := os.urandom(300_000))
        assert keep_copy(file, tmp_path / "kept", 300_000) >= 300_000
    assert (tmp_path / "kept").read_bytes() == content


def test_a_file_that_cannot_be_copied_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> int:
        raise OSError(errno.EIO, "the disk is broken")

    monkeypatch.setattr(os, "copy_file_range", broken)
    with made_for(tmp_path.stat(), str(tmp_path / "given")) as file:
        (tmp_path / "given").write_text("saved")
        with pytest.raises(OSError, match="broken"):
            keep_copy(file, tmp_path / "kept", 10)


def test_a_file_that_shrinks_while_it_is_copied_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "copy_file_range", lambda *_: 0)  # it has ended
    with made_for(tmp_path.stat(), str(tmp_path / "given")) as file:
        (tmp_path / "given").write_text("saved")
        with pytest.raises(Invalid, match="shorter"):
            keep_copy(file, tmp_path / "kept", 10)


def test_whoever_is_to_write_it_owns_it_and_what_is_put_in_its_place_is_not_touched(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    with made_for(os.stat("/"), str(tmp_path / "given")) as file:
        (tmp_path / "given").unlink()
        (tmp_path / "given").symlink_to(victim)
        assert os.fstat(file).st_uid == (os.stat("/").st_uid if os.geteuid() == 0 else os.geteuid())
        with pytest.raises(Invalid, match="no snapshot"):
            keep_copy(file, tmp_path / "kept", 10)
    assert victim.read_text() == "mine"


async def test_who_is_cancelled_waits_for_the_thread_that_uses_what_they_close() -> None:
    begun, may_end = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        may_end.wait(10)
        raise OSError("and fails")

    waiting = asyncio.create_task(in_thread(work))
    await asyncio.to_thread(begun.wait, 10)
    for _ in range(2):  # the second time while it waits
        waiting.cancel()
        await asyncio.wait({waiting}, timeout=0.02)
    assert not waiting.done()
    may_end.set()
    await asyncio.wait({waiting}, timeout=10)
    assert waiting.cancelled()
