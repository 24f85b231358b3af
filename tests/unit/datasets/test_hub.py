from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from gymbox.datasets.collate import Collation, collate
from gymbox.datasets.hub import download, upload
from gymbox.datasets.sources import Source
from gymbox.errors import ConfigError

from tests.unit.datasets.conftest import Rows, read, task
from tests.unit.datasets.hub_double import COMMIT, HubDouble, hub_double

pytest.importorskip("huggingface_hub")
pytest.importorskip("datasets")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubDouble]:
    monkeypatch.setenv("HF_TOKEN", "hf_token")
    with hub_double() as double:
        yield double


def collected(rows: Rows, folder: Path) -> Path:
    path = rows(task("a", answer="1"), task("b", answer="2"))
    collate({"train": [Source(str(path))]}, Collation(license="MIT"), folder / "collected")
    return folder / "collected"


def test_a_folder_that_is_uploaded_comes_back_the_same(hub: HubDouble, rows: Rows, tmp_path: Path) -> None:
    folder = collected(rows, tmp_path)
    address = upload(folder, "me/tasks", endpoint=hub.address)
    assert address.endswith(COMMIT)
    assert hub.made[0].get("private") or hub.made[0]["visibility"] == "private"
    assert hub.commits[0]["summary"] == "Upload collected"
    assert download("me/tasks", tmp_path / "back", endpoint=hub.address) == COMMIT
    names = sorted(path.name for path in folder.iterdir())
    assert sorted(path.name for path in (tmp_path / "back").iterdir()) == names
    for name in names:
        assert (tmp_path / "back" / name).read_bytes() == (folder / name).read_bytes()


def test_one_file_goes_there_and_back(hub: HubDouble, rows: Rows, tmp_path: Path) -> None:
    path = collected(rows, tmp_path) / "train.jsonl"
    upload(path, "me/tasks", file="data/rows.jsonl", message="Rows", private=False, endpoint=hub.address)
    assert list(hub.repositories["me/tasks"]) == ["data/rows.jsonl"]
    download("me/tasks", tmp_path / "back.jsonl", file="data/rows.jsonl", endpoint=hub.address)
    assert (tmp_path / "back.jsonl").read_bytes() == path.read_bytes()
    assert not [entry for entry in tmp_path.iterdir() if entry.name.startswith(".")]


def test_what_is_wrong_is_not_uploaded(hub: HubDouble, rows: Rows, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="rows.jsonl: its license is not known"):
        upload(rows(task("a")), "me/tasks", endpoint=hub.address)
    with pytest.raises(ConfigError, match=r"is not uploaded, for it has 1 fault:\n.*rows.jsonl:1"):
        upload(rows({}), "me/tasks", endpoint=hub.address)
    with pytest.raises(ConfigError, match="no such file or folder"):
        upload(tmp_path / "nowhere", "me/tasks", endpoint=hub.address)
    assert not hub.made


def test_what_the_hub_refuses_is_told_and_nothing_is_left(hub: HubDouble, tmp_path: Path) -> None:
    hub.repositories["me/tasks"] = {"a.jsonl": b"{}\n"}
    with pytest.raises(ConfigError, match="me/nothing at main: the Hub says: .*check the name"):
        download("me/nothing", tmp_path / "out", endpoint=hub.address)
    with pytest.raises(ConfigError, match="me/tasks at nowhere: the Hub says"):
        download("me/tasks", tmp_path / "out", revision="nowhere", endpoint=hub.address)
    with pytest.raises(ConfigError, match="me/tasks at main: the Hub says"):
        download("me/tasks", tmp_path / "out", file="b.jsonl", endpoint=hub.address)
    with pytest.raises(ConfigError, match="the Hub says: .*"):
        download("not a name", tmp_path / "out", endpoint=hub.address)
    assert not list(tmp_path.iterdir())


def test_a_hub_that_does_not_answer_is_told(tmp_path: Path) -> None:
    with hub_double() as gone:
        address = gone.address
    with pytest.raises(ConfigError, match="the Hub does not answer: .*check the network, and HF_ENDPOINT"):
        download("me/tasks", tmp_path / "out", endpoint=address)


def test_the_command_line_reads_rows_from_the_hub(hub: HubDouble, tmp_path: Path) -> None:
    lines = "".join(json.dumps(task(text)) + "\n" for text in ("a", "b"))
    hub.repositories["me/tasks"] = {"train.jsonl": lines.encode()}
    variables = {
        **os.environ,
        "HF_ENDPOINT": hub.address,
        "HF_HOME": str(tmp_path / "home"),
        "HF_HUB_DISABLE_XET": "1",
    }

    def gymbox(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", "from gymbox.cli import main; main()", "dataset", *arguments]
        return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=120)

    done = gymbox("convert", "hf:me/tasks", "-o", str(tmp_path / "out.jsonl"))
    assert done.returncode == 0, done.stderr
    assert read(tmp_path / "out.jsonl") == [task("a"), task("b")]
    done = gymbox("download", "me/tasks", "-o", str(tmp_path / "fetched"))
    assert done.returncode == 0, done.stderr
    assert f"me/tasks at commit {COMMIT}" in done.stdout
    done = gymbox("convert", "hf:me/nothing", "-o", str(tmp_path / "none.jsonl"))
    assert done.returncode == 2
    assert "hf:me/nothing cannot be read" in done.stderr
