"""Sparse files: their holes are kept on the way in and on the way out."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile

import pytest
from gymbox_sandbox import sparse
from gymbox_sandbox.sparse import SparseTarFile, SparseWriter

SIZE = 40 << 20


@pytest.fixture
def holed(tmp_path):
    """A file with data at its beginning and in its midst, and holes between and at its end."""
    path = tmp_path / "holed"
    with path.open("wb") as file:
        file.write(b"head")
        file.seek(20 << 20)
        file.write(b"midst" * 1000)
        file.truncate(SIZE)
    return path


def kibibytes(path):
    return path.stat().st_blocks / 2


def packed(path, name="folder/holed"):
    buffer = io.BytesIO()
    with SparseTarFile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        archive.add(path, name)
        archive.addfile(tarfile.TarInfo("after"), io.BytesIO())
    return buffer.getvalue()


async def test_a_sparse_file_stays_sparse_both_ways_and_needs_no_room_in_an_archive(host, holed):
    data = packed(holed)
    assert len(data) < 64_000
    async with host.client.put("/archive", params={"path": "in"}, data=data) as answer:
        assert await answer.json() == {"files": 2}
    inside = host.workspace / "in/folder/holed"
    assert inside.read_bytes() == holed.read_bytes()
    assert kibibytes(inside) < 1024
    async with host.client.get("/archive", params={"path": "in"}) as answer:
        back = await answer.read()
    assert len(back) < 256_000
    with tarfile.open(fileobj=io.BytesIO(back)) as archive:
        assert archive.extractfile("folder/holed").read() == holed.read_bytes()


async def test_an_uploaded_file_of_zeros_is_a_hole(host, holed):
    async with host.client.put("/files", params={"path": "put"}, data=holed.open("rb")) as answer:
        assert await answer.json() == {"size": SIZE}
    assert kibibytes(host.workspace / "put") < 1024
    assert (host.workspace / "put").read_bytes() == holed.read_bytes()


def test_python_and_gnu_tar_read_what_is_packed(holed, tmp_path):
    data = packed(holed, "holed")
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        archive.extractall(tmp_path / "python", filter="data")
    assert (tmp_path / "python/holed").read_bytes() == holed.read_bytes()
    assert kibibytes(tmp_path / "python/holed") < 1024
    if shutil.which("tar"):
        (tmp_path / "gnu").mkdir()
        subprocess.run(["tar", "x", "-C", tmp_path / "gnu"], input=data, check=True)
        assert (tmp_path / "gnu/holed").read_bytes() == holed.read_bytes()


def test_a_file_of_one_hole_and_one_of_too_many_are_packed(tmp_path, monkeypatch, holed):
    with (tmp_path / "hole").open("wb") as file:
        file.truncate(SIZE)
    with tarfile.open(fileobj=io.BytesIO(packed(tmp_path / "hole", "x"))) as archive:
        assert archive.extractfile("x").read() == bytes(SIZE)
    monkeypatch.setattr(sparse, "_MOST_SEGMENTS", 1)
    data = packed(holed, "x")
    assert len(data) > SIZE
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        assert archive.extractfile("x").read() == holed.read_bytes()


def test_a_file_that_shrinks_while_it_is_packed_is_an_error(holed, tmp_path):
    with holed.open("rb") as file, SparseTarFile.open(fileobj=io.BytesIO(), mode="w") as archive:
        info = archive.gettarinfo(arcname="x", fileobj=file)
        inside, reader = sparse._without_holes(info, file, [(0, 4096), (SIZE, 0)])
        os.truncate(holed, 0)
        with pytest.raises(OSError, match="unexpected end"):
            tarfile.TarFile.addfile(archive, inside, reader)


def test_a_writer_keeps_short_zeros_and_data_around_holes(tmp_path):
    with (tmp_path / "file").open("wb", buffering=0) as file:
        writer = SparseWriter(file)
        parts = [b"a" * 10, bytes(100), b"b", bytes(200_000), b"c", bytes(70_000)]
        for part in parts:
            writer.write(part)
        writer.finish()
    assert (tmp_path / "file").read_bytes() == b"".join(parts)
    assert writer.size == sum(map(len, parts))
