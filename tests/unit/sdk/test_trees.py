"""What comes out of a sandbox is written here as a tree or a file, and as nothing else."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest
from gymbox.errors import ConfigError
from gymbox.sdk.trees import pack, unpack


def test_a_tree_comes_back_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "a" / "deep").mkdir(parents=True)
    (tmp_path / "a" / "deep" / "b").write_bytes(b"1")
    packed = io.BytesIO()
    assert pack(tmp_path / "a", packed) is None
    unpack("tree", packed, tmp_path / "back")
    assert (tmp_path / "back" / "deep" / "b").read_bytes() == b"1"


@pytest.mark.parametrize("mode", ["w:gz", "w:xz", "w:bz2"])
def test_a_packed_tar_is_none_since_a_small_one_could_fill_the_disk(tmp_path: Path, mode: str) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode=mode) as tar:  # type: ignore[call-overload]
        info = tarfile.TarInfo("zeros")
        info.size = 1 << 20
        tar.addfile(info, io.BytesIO(bytes(1 << 20)))
    packed.seek(0)
    with pytest.raises(ConfigError, match="cannot write"):
        unpack("tree", packed, tmp_path / "out")
    assert not (tmp_path / "out" / "zeros").exists()
