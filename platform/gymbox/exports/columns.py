"""Columns: rows as Parquet, compressed by zstd, one batch in memory at a time.

What has no fixed shape is JSON by Arrow's own type, so that each value stays as it was; as Arrow's objects, each would
get the fields of all. `datasets` (4.7 or newer) gives objects back; pandas, DuckDB and others have JSON text. Which
columns these are stands in the schema's metadata: under `gymbox.json_columns` those that are one JSON text, under
`gymbox.json_list_columns` those that are a list of them. A column's type is told by its kind and never found in its
values, so files of the same columns have the same schema and can be read as one, whatever is null or empty in them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gymbox.datasets.sources import JSON_COLUMNS, JSON_LIST_COLUMNS, needed

JSON, JSONS, TOKENS = "json", "jsons", "tokens"
"""Kinds of columns that are not plain: a JSON value, a list of them, a list of token ids."""
Columns = Mapping[str, str]
"""Name and kind of each: one of these three, or `string`, `bool`, `int64` or `float64`."""


class JsonText(str):
    """A JSON value that is text already."""

    __slots__ = ()


def write_parquet(batches: Iterable[Sequence[Mapping[str, Any]]], columns: Columns, target: Path) -> int:
    """Write the rows, each batch as a row group; how many there were. A field that a row lacks is null.

    Raises:
        ConfigError: pyarrow is not installed.
        ValueError: JSON or the column has no such value; says which column.
    """
    arrow, parquet = needed("pyarrow"), needed("pyarrow.parquet")
    types = {name: _type(arrow, kind) for name, kind in columns.items()}
    features = {name: _feature(kind) for name, kind in columns.items()}
    told = {
        "huggingface": json.dumps({"info": {"features": features}}),
        JSON_COLUMNS: json.dumps([name for name, kind in columns.items() if kind == JSON]),
        JSON_LIST_COLUMNS: json.dumps([name for name, kind in columns.items() if kind == JSONS]),
    }
    schema = arrow.schema(types.items(), metadata=told)
    count = 0
    with parquet.ParquetWriter(target, schema, compression="zstd") as file:
        for rows in batches:
            arrays = [_array(arrow, name, [row.get(name) for row in rows], kind) for name, kind in columns.items()]
            file.write_table(arrow.Table.from_arrays(arrays, schema=schema))
            count += len(rows)
    return count


def _type(arrow: Any, kind: str) -> Any:
    if kind == JSON:
        return arrow.json_()
    if kind == JSONS:
        return arrow.list_(arrow.json_())
    return arrow.list_(arrow.int64()) if kind == TOKENS else arrow.type_for_alias(kind)


def _feature(kind: str) -> dict[str, Any]:
    """As `datasets` names it, so that it takes JSON for objects."""
    if kind in (JSONS, TOKENS):
        return {"feature": _feature(JSON if kind == JSONS else "int64"), "_type": "List"}
    return {"_type": "Json"} if kind == JSON else {"dtype": kind, "_type": "Value"}


def _array(arrow: Any, name: str, cells: list[Any], kind: str) -> Any:
    try:
        return _column(arrow, cells, kind)
    except (ValueError, TypeError, OverflowError) as error:
        raise ValueError(f"{name}: {error}") from error


def _column(arrow: Any, cells: list[Any], kind: str) -> Any:
    if kind == JSON:
        texts = arrow.array([None if cell is None else _text(cell) for cell in cells], arrow.string())
        return arrow.ExtensionArray.from_storage(arrow.json_(), texts)
    if kind == JSONS:
        texts = [None if cell is None else [_text(each) for each in cell] for cell in cells]
        lists = arrow.array(texts, arrow.list_(arrow.string()))
        values = arrow.ExtensionArray.from_storage(arrow.json_(), lists.values)
        return arrow.ListArray.from_arrays(lists.offsets, values, mask=lists.is_null())
    return arrow.array(cells, _type(arrow, kind))


def _text(value: Any) -> str:
    return value if isinstance(value, JsonText) else json_text(value)


def json_text(value: Any) -> JsonText:
    """A value for a column of JSON.

    Raises:
        ValueError: it holds NaN or an infinity.
    """
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    # half a surrogate pair, which some model may have written, can only be told as an escape
    return JsonText(text if text.isascii() or _is_unicode(text) else json.dumps(value, separators=(",", ":")))


def plain_text(value: str) -> str:
    """A value for a column of strings: what is no Unicode becomes a question mark."""
    return value if value.isascii() else value.encode(errors="replace").decode()


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
