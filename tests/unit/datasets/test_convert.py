from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gymbox.datasets.convert import Shape, convert
from gymbox.datasets.shapes import Shaping
from gymbox.datasets.sources import Source, rows_of
from gymbox.errors import ConfigError
from gymbox.faults import Faults

from tests.unit.datasets.conftest import Rows, read, task

NEMO = Path(__file__).parents[4] / "shared" / "data" / "nemo_rows"


def test_csv_becomes_tasks(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("question,answer\n1+1,2\n2+2,4\n")
    shaping = Shaping(prompt_field="question", hide=("answer",))
    written = convert(Source(str(tmp_path / "rows.csv")), tmp_path / "out.jsonl", shaping=shaping)
    assert read(tmp_path / "out.jsonl") == [
        task("1+1", verifier_metadata={"answer": "2"}),
        task("2+2", verifier_metadata={"answer": "4"}),
    ]
    assert str(written).startswith(f"{tmp_path}/out.jsonl: 2 rows, sha256 ")
    again = convert(Source(str(tmp_path / "rows.csv")), tmp_path / "again.jsonl", shaping=shaping)
    assert again.sha256 == written.sha256


def test_parquet_gives_back_the_same_rows(rows: Rows, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    given: list[dict[str, Any]] = [
        {**task("a"), "n": 1, "x": 1.5, "flag": True, "mixed": 1, "nullable": None, "big": 2**70, "text": "[1]"},
        {**task("b"), "n": 2, "x": 2.5, "flag": False, "mixed": "1", "nullable": "x", "big": 1, "text": "\u2028"},
        {**task("c"), "n": 3, "x": 0.1, "flag": True, "some": {"a": None}, "big": 3, "text": ""},
    ]
    path = rows(*given)
    one = convert(Source(str(path)), tmp_path / "one.parquet", shape=Shape.AS_IS)
    other = convert(Source(str(path)), tmp_path / "other.parquet", shape=Shape.AS_IS)
    assert one.sha256 == other.sha256 and one.rows == 3
    faults = Faults()
    assert [row.fields for row in rows_of(Source(str(one.path)), faults)] == given
    assert not faults.count


def test_tasks_become_chat_rows(rows: Rows, tmp_path: Path) -> None:
    convert(Source(str(rows(task("a", answer=1)))), tmp_path / "out.jsonl", shape=Shape.CHAT)
    assert read(tmp_path / "out.jsonl") == [{"messages": [{"role": "user", "content": "a"}], "answer": 1}]


def test_rows_as_they_are_stay_the_same_bytes(rows: Rows, tmp_path: Path) -> None:
    path = rows(b'{"x":   1.10}')
    convert(Source(str(path)), tmp_path / "out.jsonl", shape=Shape.AS_IS)
    assert (tmp_path / "out.jsonl").read_bytes() == path.read_bytes()


def test_every_row_that_does_not_fit_is_told_and_nothing_is_written(rows: Rows, tmp_path: Path) -> None:
    path = rows(task("a"), {"question": "x"}, b"{", {"messages": []})
    for shape in (Shape.TASKS, Shape.CHAT):
        with pytest.raises(ConfigError) as caught:
            convert(Source(str(path)), tmp_path / "out.jsonl", shape=shape)
        said = str(caught.value)
        assert said.startswith("nothing was written, for there are 3 faults:")
        for place in (":2: responses_create_params: missing", ":3: (row): ends in", ":4: messages: holds no question"):
            assert f"{path}{place}" in said
    with pytest.raises(ConfigError, match="1 fault.*\n.*holds no rows"):
        convert(Source(str(rows())), tmp_path / "out.jsonl", shape=Shape.AS_IS)
    with pytest.raises(ConfigError, match="rows are written to .jsonl or .parquet"):
        convert(Source(str(path)), tmp_path / "out.csv")
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"]


def test_half_a_surrogate_pair_is_told_by_its_row(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text('a,b\n1,"[""\\ud800""]"\n')
    for output in ("out.jsonl", "out.parquet"):
        with pytest.raises(ConfigError, match=r"rows.csv:2: b: "):
            source = Source(str(tmp_path / "rows.csv"), json_fields=("b",))
            convert(source, tmp_path / output, shape=Shape.AS_IS)


@pytest.mark.skipif(not NEMO.is_dir(), reason="no rows of NeMo Gym here")
def test_rows_of_nemo_gym_pass_as_they_are(tmp_path: Path) -> None:
    paths = [path for path in sorted(NEMO.glob("*.jsonl")) if not path.name.endswith(".rollouts.jsonl")]
    assert paths
    for path in paths:
        written = convert(Source(str(path)), tmp_path / path.name)
        assert written.path.read_bytes().split() == path.read_bytes().split(), path
