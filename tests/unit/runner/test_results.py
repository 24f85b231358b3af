from __future__ import annotations

import asyncio
import fcntl
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from gymbox.errors import ConfigError
from gymbox.results import RunFolder, WriteFailed
from gymbox.scores import Score


def opened(path: Path, *, resume: bool = False, **inputs: Any) -> RunFolder:
    return RunFolder.open(path, inputs=inputs, settings={"model": {"api_key": "**"}}, planned=3, resume=resume)


def record(id: str, reward: float | None = 1.0) -> dict[str, Any]:
    error = None if reward is not None else {"kind": "internal", "detail": "a bug"}
    return {
        "rollout_id": id,
        "task_id": "t",
        "environment": "counter",
        "reward": reward,
        "error": error,
        "timings": {"total": 0.5},
    }


async def filled(path: Path, *ids: str) -> bytes:
    """A finished run with these records; the bytes of its file."""
    folder = opened(path)
    for id in ids:
        await folder.add(record(id))
    await folder.close("finished")
    return (path / "rollouts.jsonl").read_bytes()


async def test_a_line_is_in_the_file_when_add_returns(tmp_path: Path) -> None:
    folder = opened(tmp_path / "run")
    await folder.add(record("a"))

    assert json.loads((tmp_path / "run" / "rollouts.jsonl").read_text())["rollout_id"] == "a"
    await folder.close("finished")


async def test_a_line_whose_add_was_cancelled_is_counted_like_every_other(tmp_path: Path) -> None:
    folder = opened(tmp_path)
    adding = asyncio.create_task(folder.add(record("a")))
    await asyncio.sleep(0)  # it has handed its line over
    adding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await adding
    await folder.close("interrupted")

    ids = [json.loads(line)["rollout_id"] for line in (tmp_path / "rollouts.jsonl").open()]
    assert ids == ["a"] == sorted(folder.done)
    assert json.loads((tmp_path / "manifest.json").read_text())["done"] == 1
    assert json.loads((tmp_path / "metrics.json").read_text())["total"]["rollouts"] == 1


async def test_closing_waits_for_lines_that_are_not_on_disk_yet(tmp_path: Path) -> None:
    folder = opened(tmp_path)
    adding = asyncio.create_task(folder.add(record("a")))
    await asyncio.sleep(0)  # it has handed its line over

    await folder.close("finished")

    await adding
    assert json.loads((tmp_path / "manifest.json").read_text())["done"] == 1
    assert (tmp_path / "rollouts.jsonl").read_bytes().count(b"\n") == 1


async def test_after_a_line_that_could_not_be_written_none_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    folder = opened(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("gymbox.results.os.pwrite", full)
        with pytest.raises(WriteFailed):
            await folder.add(record("a"))
    with pytest.raises(WriteFailed):  # also when there is room again: a gap would look like a result that never was
        await folder.add(record("b"))
    await folder.close("failed")

    assert (tmp_path / "rollouts.jsonl").read_bytes() == b"" and not folder.done


@pytest.mark.parametrize("moved", [True, False])
async def test_a_folder_that_is_moved_or_removed_while_it_is_written_ends_the_run(tmp_path: Path, moved: bool) -> None:
    path = tmp_path / "run"
    folder = opened(path)
    await folder.add(record("a"))
    if moved:
        path.rename(tmp_path / "elsewhere")
    else:
        shutil.rmtree(path)

    said = rf"it was moved or removed while the run wrote to it\. {int(moved)} results are safe"
    with pytest.raises(WriteFailed, match=said):
        await folder.add(record("b"))
    await folder.close("failed")
    assert not path.exists()
    if moved:
        assert (tmp_path / "elsewhere" / "rollouts.jsonl").read_bytes().count(b"\n") == 1


async def test_a_program_may_change_its_folder_while_a_run_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    folder = opened(Path("run"))
    monkeypatch.chdir(tmp_path / "elsewhere")
    await folder.add(record("a"))
    assert (tmp_path / "run" / "rollouts.jsonl").read_bytes().count(b"\n") == 1
    monkeypatch.chdir(tmp_path)
    await folder.close("finished")


async def test_lines_that_come_in_while_one_is_written_share_the_next_write(tmp_path: Path) -> None:
    folder = opened(tmp_path)
    names = [str(number) for number in range(500)]

    await asyncio.gather(*(folder.add(record(name)) for name in names))
    await folder.close("finished")

    assert [json.loads(line)["rollout_id"] for line in (tmp_path / "rollouts.jsonl").open()] == names
    assert folder.total.rollouts == 500


async def test_a_run_is_never_overwritten(tmp_path: Path) -> None:
    before = await filled(tmp_path, "a")

    with pytest.raises(ConfigError, match="holds a run already: runner.resume=true goes on with it"):
        opened(tmp_path)
    assert (tmp_path / "rollouts.jsonl").read_bytes() == before


@pytest.mark.parametrize("resume", [True, False])
async def test_a_folder_with_other_things_in_it_is_refused(tmp_path: Path, resume: bool) -> None:
    (tmp_path / "thesis.tex").touch()

    with pytest.raises(ConfigError, match="is not empty and holds no run"):
        opened(tmp_path, resume=resume)


async def test_resume_where_no_run_is_starts_one(tmp_path: Path) -> None:
    folder = opened(tmp_path / "new", resume=True)

    assert folder.manifest.starts == 1
    await folder.close("finished")


async def test_every_torn_tail_is_cut_off_and_the_rest_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    whole = await filled(tmp_path, "a", "b")
    first = whole.index(b"\n") + 1
    for cut in range(first + 1, len(whole)):
        (tmp_path / "rollouts.jsonl").write_bytes(whole[:cut])
        caplog.clear()

        folder = opened(tmp_path, resume=True)
        await folder.close("interrupted")

        assert folder.done == {"a"}
        assert (tmp_path / "rollouts.jsonl").read_bytes() == whole[:first]
        assert f"cut off its last {cut - first} bytes" in caplog.text


async def test_new_lines_follow_the_last_whole_one(tmp_path: Path) -> None:
    whole = await filled(tmp_path, "a", "b")
    (tmp_path / "rollouts.jsonl").write_bytes(whole[:-5])

    folder = opened(tmp_path, resume=True)
    await folder.add(record("c"))
    await folder.close("finished")

    assert [json.loads(line)["rollout_id"] for line in (tmp_path / "rollouts.jsonl").read_text().splitlines()] == [
        "a",
        "c",
    ]
    assert folder.total.rollouts == 2


@pytest.mark.parametrize(
    "damage", [b"{}\n", b"[]\n", b"\x00\x00\n", b'{"rollout_id": "a"}\n', json.dumps(record("b")).encode() + b"\n"]
)
async def test_a_damaged_line_in_the_middle_refuses(tmp_path: Path, damage: bytes) -> None:
    whole = await filled(tmp_path, "a", "b")
    first = whole.index(b"\n") + 1
    (tmp_path / "rollouts.jsonl").write_bytes(whole[:first] + damage + whole[first:])

    with pytest.raises(ConfigError, match=r"rollouts.jsonl:[23] is damaged \(.*\); mend or remove it, then resume"):
        opened(tmp_path, resume=True)


async def test_one_process_at_a_time_writes_to_a_folder(tmp_path: Path) -> None:
    folder = opened(tmp_path)
    with pytest.raises(ConfigError, match="another process is writing"):
        opened(tmp_path, resume=True)
    await folder.close("interrupted")

    await opened(tmp_path, resume=True).close("interrupted")


async def test_who_waited_for_a_file_that_was_replaced_meanwhile_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled(tmp_path, "a")
    flock = fcntl.flock

    def replaced_first(descriptor: int, how: int) -> None:
        fresh = tmp_path / "fresh"
        fresh.touch()
        fresh.replace(tmp_path / "rollouts.jsonl")
        flock(descriptor, how)

    monkeypatch.setattr("gymbox.results.fcntl.flock", replaced_first)
    with pytest.raises(ConfigError, match="another process is writing"):
        opened(tmp_path, resume=True)


async def test_failed_lines_that_cannot_be_set_aside_stay(tmp_path: Path) -> None:
    folder = opened(tmp_path)
    await folder.add(record("a", None))
    await folder.close("finished")
    (tmp_path / "failures.jsonl").mkdir()

    with pytest.raises(ConfigError, match=r"cannot rewrite .*rollouts\.jsonl: Is a directory"):
        RunFolder.open(tmp_path, inputs={}, settings={}, planned=3, resume=True, retry_failed=True)
    assert (tmp_path / "rollouts.jsonl").read_bytes().count(b"\n") == 1


async def test_after_failed_lines_were_set_aside_the_folder_is_still_held(tmp_path: Path) -> None:
    folder = opened(tmp_path)
    await folder.add(record("a", None))
    await folder.add(record("b"))
    await folder.close("finished")
    folder = RunFolder.open(tmp_path, inputs={}, settings={}, planned=3, resume=True, retry_failed=True)

    assert folder.done == {"b"}
    with pytest.raises(ConfigError, match="another process is writing"):
        opened(tmp_path, resume=True)
    await folder.add(record("a"))
    await folder.close("finished")
    ids = [json.loads(line)["rollout_id"] for line in (tmp_path / "rollouts.jsonl").open()]
    assert ids == ["b", "a"]


async def test_a_resume_says_which_inputs_changed(tmp_path: Path) -> None:
    await opened(tmp_path, model={"name": "a", "base_url": "x"}).close("interrupted")

    with pytest.raises(ConfigError) as caught:
        opened(tmp_path, resume=True, model={"name": "b", "base_url": "x"}, extra=1)

    assert str(caught.value).splitlines()[1:3] == ["  model.name: was 'a', is 'b'", "  extra: was None, is 1"]


async def test_a_resume_with_other_versions_goes_on_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await opened(tmp_path).close("interrupted")
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    manifest["versions"]["gymbox"] = "0.0.1"
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))

    await opened(tmp_path, resume=True).close("finished")

    assert "gymbox: was '0.0.1', is" in caplog.text


async def test_a_damaged_manifest_refuses(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{")

    with pytest.raises(ConfigError, match="manifest.json is damaged"):
        opened(tmp_path, resume=True)


async def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(ConfigError, match="cannot write the run to .*: Not a directory; set runner.output=DIR"):
        opened(tmp_path / "file" / "run")


async def test_a_manifest_that_cannot_be_written_at_the_end_is_logged_and_the_results_stay(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = opened(tmp_path)
    await folder.add(record("a"))
    (tmp_path / "manifest.new").mkdir()

    await folder.close("finished")

    assert "could not write manifest and metrics" in caplog.text
    assert (tmp_path / "rollouts.jsonl").stat().st_size


def test_a_score_without_any_reward_has_no_mean() -> None:
    score = Score()
    score.add(record("a", None))

    assert score.metrics()["mean/reward"] is None
    assert score.errors == {"internal": 1} and score.scored == 0 and score.seconds == 0.5
    assert score.examples == {"internal": "t: a bug"}
