"""Sources: where rows come from, each row with its place, so that a fault can be found again.

    FILE.jsonl, .ndjson     one JSON object a line
    FILE.csv, .tsv          a header, then one row of text cells a record
    FILE.parquet            gymbox[datasets]
    FOLDER                  what `datasets` saved to disk, or a folder of data files; gymbox[datasets]
    hf:OWNER/NAME           a dataset of the Hugging Face Hub, streamed; gymbox[datasets]

Arrow gives every object of a column the same fields and fills the absent ones with null, so nulls inside the objects
of a Parquet or Hugging Face column are taken for absent fields. A column of its own that is null stays null.
"""

from __future__ import annotations

import csv
import datetime
import json
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from gymbox.dataset import lines_of
from gymbox.datasets.files import json_line
from gymbox.errors import ConfigError, nearest
from gymbox.faults import Fault, Faults
from gymbox.row_check import MAX_ROW_BYTES, RowCheck

HUB = "hf:"
JSON_FIELDS = ("messages", "tools", "responses_create_params", "verifier_metadata", "agent_ref")
"""Cells of these columns that begin like an object or a list are JSON, where the source has only text."""
JSON_COLUMNS, JSON_LIST_COLUMNS = "gymbox.json_columns", "gymbox.json_list_columns"
"""Keys of a Parquet file's metadata: the columns that hold JSON as text, and those that hold lists of such texts."""
_SUFFIXES = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
}
_BATCH = 1_000


@dataclass(frozen=True, slots=True)
class SourceRow:
    """One row: its fields, and where it stands."""

    line: int
    """From 1: of JSONL and CSV the line in which it begins, else the row."""
    fields: dict[str, Any]
    raw: bytes | None = None
    """Its line, newline included, where the source is JSONL."""

    def as_line(self, fields: dict[str, Any]) -> bytes:
        """What it is made into as a line of JSONL; the bytes that it was read from, where `fields` are its own.

        Raises: as `json_line`.
        """
        if fields is self.fields and self.raw is not None:
            return self.raw.rstrip(b"\r\n") + b"\n"
        return json_line(fields)


@dataclass(frozen=True, slots=True)
class Source:
    """Where rows are, and which part of it is meant."""

    name: str
    """A path, or `hf:OWNER/NAME`."""
    split: str | None = None
    """Hugging Face: which split."""
    config: str | None = None
    """Hugging Face: which configuration."""
    revision: str | None = None
    """Hugging Face Hub: branch, tag or commit."""
    json_fields: tuple[str, ...] = ()
    """Further columns whose text is JSON."""

    @property
    def path(self) -> Path:
        return Path(self.name)

    @property
    def kind(self) -> str:
        """`jsonl`, `csv`, `parquet`, `folder` or `hub`.

        Raises:
            ConfigError: there is nothing of that name, or it is of no kind that can be read.
        """
        if self.name.startswith(HUB):
            return "hub"
        if self.path.is_dir():
            return "folder"
        if not self.path.exists():
            beside = [entry.name for entry in self.path.parent.glob("*")] if self.path.parent.is_dir() else []
            raise ConfigError(f"{self.name}: there is no such file; {nearest(self.path.name, beside[:50])}")
        if self.path.suffix.lower() not in _SUFFIXES:
            raise ConfigError(
                f"{self.name}: rows are read from {', '.join(_SUFFIXES)}, a folder or {HUB}OWNER/NAME; "
                "rename the file if it is one of these, or unpack it"
            )
        return _SUFFIXES[self.path.suffix.lower()]


@dataclass(frozen=True, slots=True)
class _Json:
    """A value that came as JSON, whose nulls are nulls."""

    value: Any


def rows_of(source: Source, faults: Faults) -> Iterator[SourceRow]:
    """The rows, in order. A row that cannot be read is left out and told in `faults`.

    Raises:
        ConfigError: the source as a whole cannot be read, or needs an extra that is not installed.
    """
    kind = source.kind
    if kind == "jsonl":
        yield from _jsonl(source.path, faults)
        return
    read = {"csv": _csv, "parquet": _parquet, "folder": _folder, "hub": _hub}[kind]
    for line, fields in read(source, faults):
        found = _plain(source, line, fields, faults)
        if found is not None:
            yield SourceRow(line, found)


def _jsonl(path: Path, faults: Faults) -> Iterator[SourceRow]:
    for number, line in lines_of(path):
        try:
            fields = from_json(line.rstrip(b"\r\n"), allow_inf_nan=False)
        except ValueError:
            fields = None
        if isinstance(fields, dict):
            yield SourceRow(number, fields, line)
        else:
            faults.add(RowCheck(path, ()).row(number, line))


def _csv(source: Source, faults: Faults) -> Iterator[tuple[int, dict[str, Any]]]:
    path = source.path
    csv.field_size_limit(MAX_ROW_BYTES)
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, delimiter=delimiter, strict=True)
            header = next(reader, [])
            twice = sorted({name for name in header if not name or header.count(name) > 1})
            if not header or twice:
                raise ConfigError(
                    f"{path}:1: the header {f'names {twice} twice or not' if twice else 'is missing'}; "
                    "name each column once, in the first line"
                )
            begin = reader.line_num + 1
            for cells in reader:
                line, begin = begin, reader.line_num + 1
                if cells and len(cells) != len(header):
                    reason = f"has {len(cells)} cells where the header names {len(header)}"
                    faults.add([Fault(path, line, "(row)", reason, 'put cells that hold a comma in "…"')])
                elif cells:
                    yield line, dict(zip(header, cells, strict=True))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 ({error.reason} in byte {error.start}); save it as UTF-8") from error
    except csv.Error as error:
        raise ConfigError(f"{path}:{reader.line_num}: is not CSV: {error}; mend the quotes there") from error


def _parquet(source: Source, faults: Faults) -> Iterator[tuple[int, dict[str, Any]]]:
    parquet, arrow = needed("pyarrow.parquet"), needed("pyarrow")
    try:
        with parquet.ParquetFile(source.path) as file:
            metadata = file.schema_arrow.metadata or {}
            read = {name: _texts_read for name in json.loads(metadata.get(JSON_LIST_COLUMNS.encode(), b"[]"))}
            read |= {name: json.loads for name in json.loads(metadata.get(JSON_COLUMNS.encode(), b"[]"))}
            rows = (row for batch in file.iter_batches(_BATCH) for row in batch.to_pylist())
            for number, row in enumerate(rows, 1):
                yield (
                    number,
                    {
                        name: _Json(read[name](value)) if name in read else value
                        for name, value in row.items()
                        if not (name in read and value is None)
                    },
                )
    except (arrow.ArrowException, OSError, ValueError) as error:
        raise ConfigError(f"{source.name} cannot be read as Parquet: {error}") from error


def _texts_read(texts: list[str]) -> list[Any]:
    return [json.loads(text) for text in texts]


def _folder(source: Source, faults: Faults) -> Iterator[tuple[int, dict[str, Any]]]:
    hugging = needed("datasets")
    if not any((source.path / name).exists() for name in ("dataset_dict.json", "state.json")):
        yield from _loaded(source, source.name)
        return
    try:
        found = hugging.load_from_disk(source.name)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{source.name} cannot be read as a saved dataset: {error}") from error
    if isinstance(found, hugging.DatasetDict):
        found = found[_one_split(source, list(found))]
    elif source.split is not None:
        raise ConfigError(f"{source.name} holds no splits; leave --split {source.split} out")
    yield from enumerate(found, 1)


def _hub(source: Source, faults: Faults) -> Iterator[tuple[int, dict[str, Any]]]:
    return _loaded(source, source.name.removeprefix(HUB))


def _loaded(source: Source, name: str) -> Iterator[tuple[int, dict[str, Any]]]:
    hugging = needed("datasets")
    try:
        found = hugging.load_dataset(name, source.config, revision=source.revision, streaming=True)
        yield from enumerate(found[_one_split(source, list(found))], 1)
    except (OSError, ValueError, RuntimeError, hugging.exceptions.DatasetsError) as error:
        raise ConfigError(
            f"{source.name} cannot be read: {type(error).__name__}: {error}; check its name, --config, --revision, "
            "and for a private one HF_TOKEN"
        ) from error


def _one_split(source: Source, splits: list[str]) -> str:
    if source.split is None and len(splits) == 1:
        return splits[0]
    if source.split not in splits:
        said = "has several splits; name one" if source.split is None else f"has no split {source.split!r}"
        hint = f"known: {', '.join(splits)}" if source.split is None else nearest(source.split, splits)
        raise ConfigError(f"{source.name} {said} (--split); {hint}")
    return source.split


def needed(module: str, extra: str = "datasets") -> Any:
    """A module of an extra.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise ConfigError(f"this needs {module}; install it with: pip install 'gymbox[{extra}]'") from error


def _plain(source: Source, line: int, fields: dict[str, Any], faults: Faults) -> dict[str, Any] | None:
    """The row as JSON has it. None: a field cannot be told in JSON, or is said to be JSON and is not."""
    decoded = (*JSON_FIELDS, *source.json_fields)
    plain: dict[str, Any] = {}
    for name, value in fields.items():
        try:
            plain[name] = _json_value(value)
            if (
                isinstance(value, str)
                and name in decoded
                and (value.lstrip().startswith(("[", "{")) or name in source.json_fields)
            ):
                plain[name] = from_json(value, allow_inf_nan=False)
        except (TypeError, ValueError) as error:
            remedy = "leave it out with --drop, or mend it" if isinstance(error, TypeError) else "mend the JSON in it"
            faults.add([Fault(Path(source.name), line, name, str(error), remedy)])
            return None
    return plain


def _json_value(value: Any) -> Any:
    """
    Raises:
        TypeError: JSON has no such value.
    """
    if isinstance(value, _Json):
        return value.value
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        if value != value or value in (float("inf"), float("-inf")):
            raise TypeError("is NaN or infinite, which JSON has not")
        return value
    if isinstance(value, dict):
        return {str(name): _json_value(part) for name, part in value.items() if part is not None}
    if isinstance(value, list | tuple):
        return [_json_value(part) for part in value]
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    raise TypeError(f"is {type(value).__name__}, which JSON has not")
