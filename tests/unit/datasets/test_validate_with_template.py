"""`gymbox dataset validate --template`: rows that only make sense with the template that a run fills them into."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from gymbox.datasets.tasks import checked
from gymbox.datasets.templates import Prompt

from tests.unit.datasets.conftest import Rows, task
from tests.unit.datasets.test_dataset_commands import gymbox


@pytest.fixture
def template(tmp_path: Path) -> Path:
    path = tmp_path / "prompt.yaml"
    path.write_text("system: Be careful.\nuser: |\n  {question}\n  Hint: {hints[0]}\n")
    return path


def question(text: str, *hints: str) -> dict[str, object]:
    return {"question": text, "hints": list(hints)}


def test_rows_without_an_input_are_right_with_the_template_that_makes_it(
    rows: Rows, template: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = rows(question("1 + 1?", "add"), question("2 + 2?", "add"))
    assert gymbox("validate", path) == 1
    assert "responses_create_params: missing" in capsys.readouterr().err
    assert gymbox("validate", path, "--template", template) == 0
    assert f"{path}: 2 rows, filled into {template}, sha256 " in capsys.readouterr().out
    assert gymbox("validate", path, "-t", template, "--json") == 0
    [report] = json.loads(capsys.readouterr().out)
    assert report["template"] == Prompt.load(template, ()).sha256


def test_a_field_that_a_row_lacks_is_told_with_its_line(
    rows: Rows, template: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = rows(question("1 + 1?", "add"), {"qestion": "2 + 2?", "hints": ["add"]}, question("3 + 3?"))
    assert gymbox("validate", path, "-t", template) == 1
    said = capsys.readouterr().err
    assert f"{path}:2: question: the template names it, the row has no such field; did you mean 'qestion'?" in said
    assert f"{path}:3: hints[0]: the template names it, the row has none; mend the row or the template" in said
    assert said.startswith("2 faults:")


def test_a_row_that_has_an_input_is_a_fault_unless_it_is_to_be_replaced(
    rows: Rows, template: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = rows(task("a", question="1 + 1?", hints=["add"]))
    assert gymbox("validate", path, "-t", template) == 1
    assert "responses_create_params.input: is there already; replace it with --overwrite" in capsys.readouterr().err
    assert gymbox("validate", path, "-t", template, "--overwrite") == 0
    assert gymbox("validate", path, "--overwrite") == 2
    assert "there is no --template" in capsys.readouterr().err


def test_what_the_row_says_beside_its_input_is_checked_too(
    rows: Rows, template: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = rows(question("1?", "add") | {"responses_create_params": {"temperatur": 1}})
    assert gymbox("validate", path, "-t", template) == 1
    assert "responses_create_params.temperatur: unknown field; did you mean 'temperature'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "options", "fault"),
    [
        ("user: '{verifier_metadata[answer]}'", (), "{verifier_metadata} is hidden from the agent"),
        ("user: '{hints}'", ("--hidden-field", "hints"), "{hints} is hidden from the agent"),
        ("user: '{0}'", (), "{0} is no placeholder"),
        ("system: only", (), "user: Field required"),
        (None, (), "cannot be read: No such file"),
    ],
)
def test_a_template_that_is_wrong_is_refused_before_any_row(
    rows: Rows,
    template: Path,
    text: str | None,
    options: tuple[str, ...],
    fault: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = rows(question("1?", "add"))
    template.unlink() if text is None else template.write_text(text)
    assert gymbox("validate", path, "-t", template, *options) == 2
    assert fault in capsys.readouterr().err


def test_what_an_environments_manifest_hides_is_no_field_for_a_template(
    template: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "environments" / "sums"
    folder.mkdir(parents=True)
    manifest = folder / "environment.yaml"
    manifest.write_text("description: x\ndataset: rows.jsonl\n")
    (folder / "rows.jsonl").write_text(json.dumps(question("1?", "add")) + "\n")
    named = ("-e", "sums", "-f", folder.parent, "-t", template)
    assert gymbox("validate", *named) == 0
    manifest.write_text(manifest.read_text() + "hidden_fields: [hints]\n")
    assert gymbox("validate", *named) == 2
    assert "{hints} is hidden from the agent" in capsys.readouterr().err


def test_a_large_file_is_filled_in_by_several_processes_alike(
    rows: Rows, template: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gymbox.dataset_index.PART", 1000)
    path = rows(*(question(f"{number}?", *["add"] * (number != 70)) for number in range(100)))
    [fault] = checked(path, (), Prompt.load(template, ())).faults.shown
    assert (fault.line, fault.field) == (71, "hints[0]")
