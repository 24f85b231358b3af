from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gymbox.datasets.card import front_matter, license_of
from gymbox.datasets.collate import Collation, OnDuplicates, collate
from gymbox.datasets.shapes import Shaping
from gymbox.datasets.sources import Source
from gymbox.errors import ConfigError

from tests.unit.datasets.conftest import Rows, read, task

MIT = Collation(license="MIT")


def source(path: Path) -> Source:
    return Source(str(path))


def test_rows_of_several_kinds_are_put_together_by_split(rows: Rows, tmp_path: Path) -> None:
    (tmp_path / "more.csv").write_text("q,answer\nthree?,3\n")
    chat = {"messages": [{"role": "user", "content": "two?"}]}
    train = [source(rows(task("one?", agent_ref={"name": "own"}), chat)), source(tmp_path / "more.csv")]
    validation = [source(rows(task("ONE?"), name="validation.jsonl"))]
    parts = {"train": train[:1], "validation": validation}
    collected = collate(parts, Collation(agent="tool_loop", license="MIT"), tmp_path / "out")
    assert [row["agent_ref"]["name"] for row in read(tmp_path / "out" / "train.jsonl")] == ["own", "tool_loop"]
    assert [written.rows for written in collected.splits] == [2, 1]
    [overlap] = collected.contamination
    assert (overlap.prompts, overlap.contaminated) == (1, 1)
    card = (tmp_path / "out" / "README.md").read_text()
    assert collected.splits[0].sha256 in card and "validation by train: 1 of 1 rows contaminated" in card
    assert front_matter(tmp_path / "out" / "README.md")["license"] == "MIT"
    metrics = json.loads((tmp_path / "out" / "train_metrics.json").read_text())
    assert metrics["rows"] == 2 and metrics["sha256"] == collected.splits[0].sha256
    assert collate({"train": train[1:]}, Collation(Shaping("q"), license="MIT"), tmp_path / "csv").splits[0].rows == 1


def test_the_same_sources_give_the_same_bytes(rows: Rows, tmp_path: Path) -> None:
    path = rows(*(task(f"q{number % 5}") for number in range(9)))
    one, other = (collate({"train": [source(path)]}, MIT, tmp_path / name) for name in ("one", "other"))
    for written, again in zip(one.splits, other.splits, strict=True):
        assert written.path.read_bytes() == again.path.read_bytes()
    assert (tmp_path / "one/README.md").read_bytes() == (tmp_path / "other/README.md").read_bytes()
    assert (tmp_path / "one/train_metrics.json").read_bytes() == (tmp_path / "other/train_metrics.json").read_bytes()


def test_hugging_face_finds_the_splits_by_the_card(rows: Rows, tmp_path: Path) -> None:
    hugging = pytest.importorskip("datasets")
    path = rows(task("a", answer="1"), task("b", answer="2"))
    collate({"train": [source(path)], "test": [source(path)]}, MIT, tmp_path / "out")
    found = hugging.load_dataset(str(tmp_path / "out"), streaming=True)
    assert [row["answer"] for row in found["test"]] == ["1", "2"]


@pytest.mark.parametrize(
    ("what", "left"),
    [(OnDuplicates.KEEP, "xXxy"), (OnDuplicates.DROP_EXACT, "xXy"), (OnDuplicates.DROP_NORMALISED, "xy")],
)
def test_what_is_left_out_is_counted_and_named(rows: Rows, tmp_path: Path, what: OnDuplicates, left: str) -> None:
    path = rows(*map(task, "xXxy"))
    collected = collate({"train": [source(path)]}, Collation(on_duplicates=what, license="MIT"), tmp_path / "out")
    kept = read(tmp_path / "out" / "train.jsonl")
    assert [row["responses_create_params"]["input"][0]["content"] for row in kept] == list(left)
    assert collected.dropped == {"train": 4 - len(left)}
    metrics = json.loads((tmp_path / "out" / "train_metrics.json").read_text())
    assert metrics["rows"] == len(left)
    assert metrics["dropped"]["rows"] == len(metrics["dropped"]["first"]) == 4 - len(left)
    assert metrics["duplicates"]["normalised"]["rows"] == 2


def test_a_duplicate_can_be_refused(rows: Rows, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"rows.jsonl:2: \(row\): is the same as an earlier one"):
        collation = Collation(on_duplicates=OnDuplicates.REFUSE, license="MIT")
        collate({"train": [source(rows(task("x"), task("X ")))]}, collation, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_copies_have_ids_of_their_own(rows: Rows, tmp_path: Path) -> None:
    path = rows(task("x", id="a"), task("y"))
    collate({"train": [source(path)]}, Collation(repeats=2, license="MIT"), tmp_path / "out")
    assert [row.get("id") for row in read(tmp_path / "out" / "train.jsonl")] == ["a", "a.2", None, None]
    with pytest.raises(ConfigError, match="0 repeats"):
        collate({"train": [source(path)]}, Collation(repeats=0, license="MIT"), tmp_path / "none")


def test_a_fault_is_told_where_the_row_came_from(rows: Rows, tmp_path: Path) -> None:
    one, other = rows(task("x", id="a"), b"", name="one.jsonl"), rows(b"", task("y", id="a"), name="other.jsonl")
    with pytest.raises(ConfigError, match=rf"{other}:2: id: stands in {one}:1 already; give each row"):
        collate({"train": [source(one), source(other)]}, MIT, tmp_path / "out")
    with pytest.raises(ConfigError, match=rf"{one}:1: responses_create_params.input: missing or empty"):
        collate({"train": [source(rows({"responses_create_params": {}}, name="one.jsonl"))]}, MIT, tmp_path / "out")
    with pytest.raises(ConfigError, match="holds no rows"):
        collate({"train": [source(rows(name="one.jsonl"))]}, MIT, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def environment(folder: Path, license: str) -> Path:
    (folder / "data").mkdir(parents=True)
    (folder / "environment.yaml").write_text(f"description: x\nlicense: {license}\n")
    (folder / "data" / "example.jsonl").write_text(json.dumps(task(license)) + "\n")
    return folder / "data" / "example.jsonl"


def test_the_license_is_that_of_manifest_or_card(rows: Rows, tmp_path: Path) -> None:
    mit, apache = environment(tmp_path / "one", "MIT"), environment(tmp_path / "two", "Apache-2.0")
    assert collate({"train": [source(mit)]}, Collation(), tmp_path / "out").license == "MIT"
    with pytest.raises(ConfigError, match=r"the licenses differ: MIT \(.*one/environment.yaml\), Apache-2.0"):
        collate({"train": [source(mit), source(apache)]}, Collation(), tmp_path / "both")
    with pytest.raises(ConfigError, match=r"rows.jsonl: its license is not known; name it with --license"):
        collate({"train": [source(rows(task("x")))]}, Collation(), tmp_path / "none")
    with pytest.raises(ConfigError, match="the license is empty"):
        collate({"train": [source(mit)]}, Collation(license=" "), tmp_path / "none")
    with pytest.raises(ConfigError, match="hf:a/b: read its license on the Hub"):
        collate({"train": [Source("hf:a/b")]}, Collation(), tmp_path / "none")


@pytest.mark.parametrize(
    ("card", "license"),
    [
        ("---\r\nlicense: mit\r\n---\r\n# x", "mit"),
        ("---\nlicense: [mit, bsd]\n---\n", "mit, bsd"),
        ("# no front matter", None),
        ("---\nlicense: mit\n", None),
    ],
)
def test_a_card_tells_its_license_in_front(rows: Rows, tmp_path: Path, card: str, license: Any) -> None:
    (tmp_path / "README.md").write_bytes(card.encode())
    found = license_of(rows(task("x")))
    assert (found and found.name) == license


@pytest.mark.parametrize(("card", "said"), [("---\n[\n---\n", "is not YAML"), ("---\nx\n---\n", "must be a mapping")])
def test_a_card_that_is_wrong_is_told(rows: Rows, tmp_path: Path, card: str, said: str) -> None:
    (tmp_path / "README.md").write_text(card)
    with pytest.raises(ConfigError, match=said):
        license_of(rows(task("x")))
