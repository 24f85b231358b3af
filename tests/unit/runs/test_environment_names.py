"""An environment has one name in all that is counted of a run, however it was chosen."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from gymbox.evaluation.parts import Planned, planned_of
from gymbox.evaluation.rollouts import RunReader
from gymbox.plan import Plan
from gymbox.results import RunFolder
from gymbox.run_manifest import manifest_in
from gymbox.runner_settings import RunnerSettings
from gymbox.runs.environments import EnvironmentChoice, environments_of
from gymbox.runs.view import view_of_folder

from tests.unit.evaluation.conftest import line


@pytest.fixture
def counter(tmp_path: Path) -> Path:
    folder = tmp_path / "elsewhere" / "counter"
    (folder / "data").mkdir(parents=True)
    (folder / "environment.yaml").write_text("description: x\n")
    row = {"responses_create_params": {"input": "go"}}
    rows = [json.dumps({"id": task, **row}) for task in "ab"]
    (folder / "data" / "example.jsonl").write_text("".join(f"{each}\n" for each in rows))
    (tmp_path / "known").mkdir()
    (tmp_path / "known" / "alias").symlink_to(folder)
    return folder


@pytest.mark.parametrize(
    ("choice", "name"),
    [
        ("alias", "alias"),
        ("known/alias", "counter"),
        ("elsewhere/../known/alias/", "counter"),
        (Path("known/alias"), "counter"),
        ("elsewhere/counter", "counter"),
    ],
)
async def test_what_is_planned_and_what_is_done_is_counted_under_one_name(
    choice: EnvironmentChoice, name: str, counter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    [environment] = environments_of([choice], [Path("known")])
    with Plan([environment], RunnerSettings.model_validate({"repeats": {name: 2}})) as plan:
        assert plan.sizes() == {name: 4}
        folder = RunFolder.open(tmp_path / "run", inputs=plan.inputs(), settings={}, planned=len(plan), resume=False)
        for slot in list(plan)[:3]:
            await folder.add(line(slot.row.id, slot.repeat, 1.0, environment=slot.environment.name))
        assert {each: score.rollouts for each, score in folder.scores.items()} == {name: 3}
        await folder.close("interrupted")
    manifest = manifest_in(tmp_path / "run")
    assert manifest is not None
    view = view_of_folder(tmp_path / "run", manifest)
    assert (view.done, view.planned, {each: one.done for each, one in view.environments.items()}) == (3, 4, {name: 3})
    assert planned_of(RunReader(tmp_path / "run")) == {name: Planned(2, 2)}
