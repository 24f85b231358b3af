"""Artifacts: kept once, on disk before anyone counts on them, and never taken for what they are not."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

import pytest
from gymbox.artifacts import ArtifactStore, KeptArtifacts, contents_of
from gymbox.errors import RolloutFailure


def tar_of(files: dict[str, bytes]) -> IO[bytes]:
    file = TemporaryFile()  # noqa: SIM115  whoever gets it closes it
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    file.seek(0)
    return file


async def kept(store: ArtifactStore, files: dict[str, bytes]) -> KeptArtifacts:
    with tar_of(files) as file:
        found = await store.keep(file)
    assert found is not None
    return found


async def test_what_is_kept_comes_back_byte_by_byte(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    files = {"a.py": b"print(1)\n" * 1000, "deep/b": os.urandom(3_000_000)}
    found = await kept(store, files)
    assert (found.files, found.bytes > 3_000_000) == (2, True)
    async with store.opened(found) as file:
        with tarfile.open(fileobj=file) as archive:
            assert {name: archive.extractfile(name).read() for name in archive.getnames()} == files
    assert store.path(found.sha256) == tmp_path / "artifacts" / found.sha256[:2] / f"{found.sha256}.tar.gz"


async def test_equal_ones_are_kept_once(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    first = await kept(store, {"a": b"1"})
    stamp = store.path(first.sha256).stat()
    assert await kept(store, {"a": b"1"}) == first
    assert await kept(store, {"a": b"2"}) != first
    assert store.path(first.sha256).stat().st_mtime_ns == stamp.st_mtime_ns
    assert len([path for path in (tmp_path / "artifacts").rglob("*") if path.is_file()]) == 2


async def test_what_is_empty_holds_no_secret_and_is_no_tar(tmp_path: Path) -> None:
    with TemporaryFile() as file, pytest.raises(RolloutFailure):
        await ArtifactStore(tmp_path, secrets={"sk-12345678"}).keep(file)


async def test_a_secret_gets_on_no_disk(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = ArtifactStore(tmp_path, secrets={"sk-12345678", "short"})
    with tar_of({"a": b"short", "b": b"key=sk-12345678"}) as file:
        assert await store.keep(file) is None
    assert "secret" in caplog.text
    assert not store.folder.exists()
    await kept(store, {"a": b"short"})


async def test_what_was_changed_or_lost_is_refused(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    found = await kept(store, {"a": b"1"})
    path = store.path(found.sha256)

    async def fault() -> str:
        with pytest.raises(RolloutFailure) as failed:
            async with store.opened(found):
                raise AssertionError("unreachable")
        assert failed.value.rollout_kind == "verify_failed"
        return failed.value.detail

    packed = path.read_bytes()
    path.write_bytes(gzip.compress(b"x" * found.bytes))
    assert "is not what was kept there" in await fault()
    path.write_bytes(gzip.compress(b"0" * 100_000_000))  # not unpacked whole
    assert "is not what was kept there" in await fault()
    path.write_bytes(packed[:-20])
    assert "cannot be read" in await fault()
    path.unlink()
    assert "cannot be read" in await fault()


async def test_another_run_takes_them_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new, third = (ArtifactStore(tmp_path / name) for name in ("old", "new", "third"))
    found = await kept(old, {"a": b"1"})
    new.take(old, found.sha256)
    new.take(old, found.sha256)
    new.take(old, "0" * 64)
    assert new.path(found.sha256).samefile(old.path(found.sha256))

    def elsewhere(*_: object) -> None:
        raise OSError("another disk")

    monkeypatch.setattr(os, "link", elsewhere)
    third.take(old, found.sha256)
    async with third.opened(found) as file:
        assert contents_of(file).files == 1


def test_what_is_no_tar_is_refused() -> None:
    with pytest.raises(RolloutFailure, match="no whole tar"):
        contents_of(io.BytesIO(b"x" * 1000))
    with tar_of({"a": b"1" * 5000}) as file, pytest.raises(RolloutFailure, match="no whole tar"):
        contents_of(io.BytesIO(file.read()[:2000]))
