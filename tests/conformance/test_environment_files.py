"""What every environment that ships in environments/ must have, told from its files alone.

One that git does not track is somebody's own, under way: `gymbox env test` is for those.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from gymbox.dataset import open_datasets
from gymbox.environment import Catalog, Environment

ROOT = Path(__file__).resolve().parents[2]
CATALOG = Catalog([ROOT / "environments"])


def shipped() -> list[str]:
    """The environments that git tracks; all of them where there is no git."""
    command = ["git", "ls-files", "environments/*/environment.yaml"]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return CATALOG.names()
    return [Path(line).parent.name for line in listed.splitlines()]


@pytest.fixture(params=shipped())
def environment(request: pytest.FixtureRequest) -> Environment:
    return CATALOG[request.param]


def rows(environment: Environment) -> list[dict[str, Any]]:
    return [json.loads(line) for line in environment.dataset.read_bytes().split(b"\n") if line]


def test_its_manifest_says_what_a_reader_wants_to_know(environment: Environment) -> None:
    said = yaml.safe_load((environment.folder / "environment.yaml").read_text())
    assert {"description", "domain", "license", "verified", "dataset"} <= set(said)
    assert len(environment.manifest.description) < 120


def test_it_has_a_readme_and_tests(environment: Environment) -> None:
    readme = (environment.folder / "README.md").read_text()
    assert readme.startswith(f"# {environment.name}\n") and len(readme) > 500
    assert list((environment.folder / "tests").glob("test_*.py"))


def test_its_rows_are_valid_and_there_are_at_least_twenty(environment: Environment) -> None:
    [dataset] = open_datasets([environment])
    assert len(dataset) >= 20
    dataset.close()


def test_every_row_has_an_id_of_its_own_and_gold_replies(environment: Environment) -> None:
    found = rows(environment)
    assert len({row["id"] for row in found}) == len(found)
    assert all(row["gold_replies"] for row in found)


def test_its_generator_writes_the_dataset_byte_for_byte(environment: Environment, tmp_path: Path) -> None:
    again = tmp_path / "again.jsonl"
    generator = environment.folder / "generate.py"
    subprocess.run([sys.executable, generator, "--output", again], check=True, cwd=tmp_path)
    assert again.read_bytes() == environment.dataset.read_bytes()


def test_what_holds_answers_never_goes_into_its_image(environment: Environment) -> None:
    files = {path.relative_to(environment.folder).parts[0] for path in environment.files()}
    assert not files & {"data", "tests", "generate.py"}
    assert {"environment.yaml", "server.py"} <= files


def test_what_only_verify_may_see_is_not_in_the_public_row(environment: Environment) -> None:
    hidden = ["verifier_metadata", "gold_replies", *environment.manifest.hidden_fields]
    for row in rows(environment):
        marked = row | {name: "CANARY" for name in hidden}
        assert "CANARY" not in json.dumps(environment.public(marked))
        assert "gold_replies" not in environment.for_verify(marked)
