from __future__ import annotations

from pathlib import Path

import pytest
from gymbox.errors import ConfigError
from gymbox.results import RunFolder
from gymbox.runs.found import find_run, is_held
from gymbox.runs.register import Entry


def entry(id: str, folder: Path) -> Entry:
    return Entry(id, str(folder), "/nowhere.sock", 1)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    monkeypatch.chdir(tmp_path)
    return RunFolder.open(Path("runs/mine"), inputs={}, settings={}, planned=1, resume=False, run="abcd")


def test_a_run_is_found_by_its_folder_live_or_not(run: RunFolder, tmp_path: Path) -> None:
    live = [entry("abcd", tmp_path / "runs" / "mine"), entry("else", tmp_path)]

    assert find_run("runs/mine", live).entry == live[0]
    found = find_run("runs/mine", live[1:])
    assert (found.id, found.folder, found.entry) == ("abcd", Path("runs/mine"), None)


def test_a_run_is_found_by_its_id_or_the_beginning_of_one(run: RunFolder, tmp_path: Path) -> None:
    live = [entry("abcx", tmp_path), entry("abyz", tmp_path), entry("ab", tmp_path)]

    assert find_run("abc", live).entry == live[0]
    assert find_run("ab", live).entry == live[2]
    assert find_run("abcd", []).folder == Path("runs/mine")
    with pytest.raises(ConfigError, match="several runs begin with 'a': abcx, abyz"):
        find_run("a", live[:2])


def test_the_only_live_run_needs_no_name(tmp_path: Path) -> None:
    live = [entry("a", tmp_path), entry("b", tmp_path)]

    assert find_run("", live[:1]).id == "a"
    with pytest.raises(ConfigError, match="no run of yours is live"):
        find_run("", [])
    with pytest.raises(ConfigError, match=r"several runs are live; name one:\n  a  .*\n  b  "):
        find_run("", live)


def test_what_is_no_run_is_told_with_the_nearest(run: RunFolder, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no run 'abce', neither live nor in ./runs.* did you mean 'abcd'"):
        find_run("abce", [])
    with pytest.raises(ConfigError, match="runs holds no run: it has no manifest.json"):
        find_run("runs", [])
    (tmp_path / "runs" / "mine" / "manifest.json").write_text("{")
    with pytest.raises(ConfigError, match="there is no run 'abcd'"):
        find_run("abcd", [])


async def test_a_folder_is_held_while_a_process_writes_to_it(run: RunFolder) -> None:
    assert is_held(run.path)
    await run.close("finished")
    assert not is_held(run.path) and not is_held(Path("nowhere"))
