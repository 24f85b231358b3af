"""Convert: rows from any source to task rows, Chat rows, or as they are; to JSONL or Parquet."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from enum import StrEnum
from itertools import batched
from pathlib import Path
from typing import Any

from gymbox.datasets.files import Written, digest_of, new_file
from gymbox.datasets.shapes import Shaping, chat_row
from gymbox.datasets.sources import JSON_COLUMNS, Source, needed
from gymbox.datasets.tasks import changed_rows, refuse, write_tasks
from gymbox.errors import ConfigError
from gymbox.faults import Fault, Faults

_GROUP = 10_000
"""Rows of a Parquet row group."""


class Shape(StrEnum):
    """What the rows become."""

    TASKS = "tasks"
    """Rows with `responses_create_params`, checked as a run would check them."""
    CHAT = "chat"
    """Rows with `messages` and `tools`."""
    AS_IS = "as-is"
    """Whatever they are."""


def convert(
    source: Source,
    output: Path,
    *,
    shape: Shape = Shape.TASKS,
    shaping: Shaping | None = None,
    hidden_fields: tuple[str, ...] = (),
    force: bool = False,
) -> Written:
    """Write the rows of a source to a .jsonl or .parquet file.

    In Parquet a column that every row has, with texts, truth values, whole numbers or numbers only, is one of these.
    Every other is JSON as text, null where a row lacks the field, and named in the file's metadata, so that reading it
    here gives the same rows back.

    Raises:
        ConfigError: with every fault; then nothing was written.
    """
    shaping = shaping or Shaping()
    kind = output.suffix.lower()
    if kind not in (".jsonl", ".parquet"):
        raise ConfigError(f"{output}: rows are written to .jsonl or .parquet; name the output so")
    if kind == ".jsonl" and shape is Shape.TASKS:
        return write_tasks([source], shaping.task, output, hidden_fields=hidden_fields, force=force)

    def change(fields: dict[str, Any]) -> dict[str, Any]:
        if shape is Shape.AS_IS:
            return fields
        task = shaping.task(fields)
        return chat_row(task) if shape is Shape.CHAT else task

    faults, rows = Faults(), 0
    with new_file(output, force=force) as lines:
        whole = lines if kind == ".jsonl" else lines.with_name(f"{lines.name}.jsonl")
        try:
            with whole.open("xb") as file:
                for row, fields in changed_rows(source, change, faults):
                    try:
                        file.write(row.as_line(fields))
                        rows += 1
                    except ValueError as error:
                        faults.add([Fault(Path(source.name), row.line, "(row)", str(error), "mend it")])
            if not rows and not faults.count:
                faults.add([Fault(Path(source.name), 1, "(file)", "holds no rows", "name a source that has some")])
            refuse(faults)
            if kind == ".parquet":
                _parquet(whole, lines)
        finally:
            if whole != lines:
                whole.unlink(missing_ok=True)
        digest = digest_of(lines)
    return Written(output, rows, digest)


def _parquet(rows: Path, target: Path) -> None:
    """Two passes over JSONL: the kinds of the columns, then their values."""
    arrow, parquet = needed("pyarrow"), needed("pyarrow.parquet")
    kinds: dict[str, Counter[str]] = {}
    total = 0
    for fields in _lines(rows):
        total += 1
        for name, value in fields.items():
            kinds.setdefault(name, Counter())[_kind(value)] += 1
    plain = {
        name: kind
        for name, found in kinds.items()
        for kind, count in found.items()
        if count == total and kind != "json"
    }
    encoded = [name for name in kinds if name not in plain]
    schema = arrow.schema(
        [(name, arrow.type_for_alias(plain.get(name, "string"))) for name in kinds],
        metadata={JSON_COLUMNS: json.dumps(encoded)},
    )
    with parquet.ParquetWriter(target, schema, compression="zstd") as file:
        for group in batched(_lines(rows), _GROUP):
            columns = {name: [row[name] if name in plain else _encoded(row, name) for row in group] for name in kinds}
            file.write_table(arrow.Table.from_pydict(columns, schema=schema))


def _kind(value: Any) -> str:
    """The name of Arrow's type for a value; `json` where it has none that gives the very same back."""
    if isinstance(value, int) and not isinstance(value, bool):
        return "int64" if -(2**63) <= value < 2**63 else "json"
    return {str: "string", bool: "bool", float: "double"}.get(type(value), "json")


def _encoded(row: dict[str, Any], name: str) -> str | None:
    return json.dumps(row[name], ensure_ascii=False) if name in row else None


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open("rb") as file:
        yield from map(json.loads, file)
