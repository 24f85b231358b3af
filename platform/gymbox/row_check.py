"""Row check: what is wrong in the rows of a dataset."""

from __future__ import annotations

import hashlib
import json
import pickle
import re
import sys
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from gymbox_sandbox.responses import Item, ResponsesParams
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from pydantic_core import from_json

from gymbox.faults import Fault, Faults

MAX_ROW_BYTES = 32 * 1024 * 1024
MAX_AGENTS = 1000
PARAMS = "responses_create_params"
KNOWN_FIELDS = (PARAMS, "verifier_metadata", "gold_replies", "gold_judgements")
KNOWN_PARAMS = (
    *ResponsesParams.model_fields,
    *("background", "conversation", "include", "max_tool_calls", "previous_response_id", "prompt", "prompt_cache_key"),
    *("reasoning", "safety_identifier", "service_tier", "store", "stream_options", "text", "top_logprobs"),
    *("truncation", "user"),
)
"""Those of the Responses API. Engines know more, which pass, unless they look like one of these mistyped."""
_KNOWN_PARAMS = frozenset(KNOWN_PARAMS)
TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
"""What model providers accept."""
_BYTE_ORDER_MARKS = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")
_GOLD: TypeAdapter[Any] = TypeAdapter(list[list[Item]])


class _Judgement(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    contains: str
    says: str | dict[str, Any]


_JUDGEMENTS: TypeAdapter[Any] = TypeAdapter(list[_Judgement])
_NOT_PLAIN = re.compile(r"^Value error, | or instance of \w+$")
_HUGE_EXPONENT = re.compile(rb"[0-9][eE]\+?[0-9]{3}")
_NO_INPUT = "put the messages for the model there, or have them made from the row's fields: runner.prompt=FILE.yaml"
_ROLES = ("user", "assistant", "system", "developer")  # no set: what is looked up may have no hash
_PLAIN = frozenset({"type", "role", "content"})


class RowPrompt(Protocol):
    """What makes a row's input from its fields."""

    def filled(self, row: dict[str, Any]) -> dict[str, Any] | tuple[str, str, str]:
        """The row with its input; or what is wrong with it: field, reason, remedy."""


@dataclass(slots=True)
class Mentions:
    """Rows that name an agent."""

    line: int
    """Of the first."""
    rows: int = 0


@dataclass(slots=True)
class Scan:
    """What one look at a part of a file found."""

    lines: int
    offsets: array[int]
    """Of the rows, from the beginning of the file."""
    faults: Faults
    ids: array[int]
    id_lines: array[int]
    agents: dict[str, Mentions]
    """See RowCheck; lines are counted from 1 at the part's beginning."""


def scan(
    path: Path,
    file: BinaryIO,
    hidden_fields: Sequence[str],
    begin: int,
    end: int | None,
    prompt: RowPrompt | None = None,
) -> Scan:
    """Check the rows between two offsets, both at the beginning of a line; None is the end of the file."""
    check, offsets, faults, number = RowCheck(path, hidden_fields, prompt), array("Q"), Faults(), 0
    for number, offset, line, too_long in _lines(file, begin, end):
        if line.strip():
            faults.add(check.too_long(number) if too_long else check.row(number, line))
            offsets.append(offset)
    return Scan(number, offsets, faults, check.ids, check.id_lines, check.agents)


def _lines(file: BinaryIO, begin: int, end: int | None) -> Iterator[tuple[int, int, bytes, bool]]:
    """Line number from 1, offset, bytes, and whether it was longer than `MAX_ROW_BYTES` (then only its start)."""
    file.seek(begin)
    number, offset = 0, begin
    while (end is None or offset < end) and (line := file.readline(MAX_ROW_BYTES + 1)):
        number += 1
        begin, offset = offset, offset + len(line)
        too_long = len(line) > MAX_ROW_BYTES
        rest = line
        while too_long and not rest.endswith(b"\n") and (rest := file.readline(MAX_ROW_BYTES)):
            offset += len(rest)
        yield number, begin, line, too_long


class RowCheck:
    """Finds what is wrong in the rows of one file, each looked at by itself; with `prompt`, as that fills them in."""

    def __init__(self, path: Path, hidden_fields: Sequence[str], prompt: RowPrompt | None = None) -> None:
        self._path = path
        self._prompt = prompt
        self._known = (*KNOWN_FIELDS, *hidden_fields)
        self.ids = array("Q")
        """Of each row that has an id, the first 8 bytes of the id's SHA-256."""
        self.id_lines = array("Q")
        """The lines in which these rows stand."""
        self.agents: dict[str, Mentions] = {}
        """By the name that rows give; of more than `MAX_AGENTS` names, only so many."""

    def _fault(self, line: int, field: str, reason: str, remedy: str) -> Fault:
        return Fault(self._path, line, field, reason, remedy)

    def too_long(self, number: int) -> list[Fault]:
        reason = f"is longer than {MAX_ROW_BYTES // 1024 // 1024} MiB"
        return [self._fault(number, "(row)", reason, "move large data into the environment's image")]

    def row(self, number: int, line: bytes) -> list[Fault]:
        """All faults of one row."""
        if line.startswith(_BYTE_ORDER_MARKS):
            return [
                self._fault(number, "(row)", "starts with a byte order mark", "save the file as UTF-8 without BOM")
            ]
        line = line.rstrip(b"\r\n")  # else the newline is part of a text that is not closed
        try:
            row = from_json(line, allow_inf_nan=False)
            if _HUGE_EXPONENT.search(line):
                json.dumps(row, allow_nan=False)  # 1e999 is read as infinity
        except ValueError as error:
            return [self._fault(number, "(row)", *_explain_json(line, str(error)))]
        if not isinstance(row, dict):
            return [self._fault(number, "(row)", f"is {_kind(row)}, not an object", "write one JSON object a line")]
        if agent := agent_named(row):
            self._mention(agent, number)
        found = [*self._names(row), *self._id(number, row), *self._asked(row), *self._fields(row)]
        return [self._fault(number, *fault) for fault in found]

    def _mention(self, agent: str, line: int) -> None:
        if agent in self.agents or len(self.agents) < MAX_AGENTS:
            self.agents.setdefault(agent, Mentions(line)).rows += 1

    def _asked(self, row: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
        """What is wrong with what the model would be asked."""
        if self._prompt is None:
            yield from self._params(row)
            return
        filled = self._prompt.filled(row)
        if isinstance(filled, tuple):
            yield filled
        else:
            yield from self._params(filled)

    def _names(self, row: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
        missing = tuple(name for name in self._known if name not in row)
        for name in row:
            meant = _meant(name, missing) or _meant(name, KNOWN_FIELDS, 0.8)
            if name not in self._known and meant in missing:
                yield name, "unknown field", f"did you mean {meant!r}? As it is, the agent would see it"

    def _id(self, number: int, row: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
        if "id" not in row:
            return
        id = row["id"]
        if not isinstance(id, str | int) or isinstance(id, bool) or id == "":
            yield "id", f"is {_kind(id)}", "use a text or a whole number, or leave it out"
            return
        self.ids.frombytes(hashlib.sha256(str(id).encode()).digest()[:8])
        self.id_lines.append(number)

    def _params(self, row: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
        if PARAMS not in row:
            if not any(_meant(name, (PARAMS,)) for name in row):  # else _names has said it
                yield PARAMS, "missing", 'add it, with the `input` for the model: {"input": […]}'
            return
        params = row[PARAMS]
        if not isinstance(params, dict):
            yield PARAMS, f"is {_kind(params)}, not an object", 'write {"input": […], "tools": […]}'
            return
        if not params.get("input"):
            meant = next((name for name in params if _meant(name, ("input",))), None)
            hint = f"rename {meant!r} to 'input'" if meant else _NO_INPUT
            yield f"{PARAMS}.input", "missing or empty", hint
        for name in (name for name in params if name not in _KNOWN_PARAMS):  # in the row's order
            missing = tuple(known for known in KNOWN_PARAMS if known not in params and known != "input")
            if meant := _meant(name, missing):
                yield f"{PARAMS}.{name}", "unknown field", f"did you mean {meant!r}? As it is, it would do nothing"
        items = params.get("input")
        plain = isinstance(items, list) and all(map(is_plain_message, items))
        try:
            ResponsesParams.model_validate({**params, "input": ""} if plain else params)
        except ValidationError:
            yield from _explain_params(params)
            return
        yield from _explain_tools(params.get("tools") or [])

    def _fields(self, row: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
        hidden = row.get("verifier_metadata", {})
        if not isinstance(hidden, dict):
            yield "verifier_metadata", f"is {_kind(hidden)}, not an object", "write {…}, or leave it out"
        if "gold_replies" in row:
            try:
                _GOLD.validate_python(row["gold_replies"])
            except ValidationError as error:
                yield from _told(
                    "gold_replies", row["gold_replies"], error, "write a list of turns, each a list of output items"
                )
        if "gold_judgements" in row:
            try:
                _JUDGEMENTS.validate_python(row["gold_judgements"])
            except ValidationError as error:
                remedy = 'write a list of {"contains": words of the question, "says": the answer}'
                yield from _told("gold_judgements", row["gold_judgements"], error, remedy)


def agent_named(row: dict[str, Any]) -> str | None:
    """Name of the agent that is to do a row: `agent_ref: {name: …}`, as in NeMo Gym's rows, or `agent`; else None."""
    ref = row.get("agent_ref")
    for name in (ref.get("name") if isinstance(ref, dict) else ref, row.get("agent")):
        if isinstance(name, str) and name:
            return name
    return None


def _explain_json(line: bytes, error: str) -> tuple[str, str]:
    """Reason and remedy for bytes that are not one JSON value."""
    if error.startswith("trailing characters"):
        return "holds more than one JSON value", "put each row on a line of its own"
    at_fault = line[int(error.rpartition(" ")[2]) - 1 :] if " column " in error else b""
    if error.startswith("Out of range") or at_fault.startswith((b"NaN", b"Infinity")):
        return "holds NaN, Infinity or a number too large", "JSON has none of these; use null or leave it out"
    if "hex escape" in error:
        return f"holds half a surrogate pair ({error})", "write the character itself, in UTF-8"
    if error.startswith("recursion limit"):
        return "is nested too deeply (more than 200 levels)", "flatten it"
    if error.startswith("EOF"):
        return "ends in the middle of a JSON value", "the file may be cut off; write the row whole, on one line"
    return f"is not JSON: {error.replace(' at line 1 column', ' at column')}", "mend it at that column"


def is_plain_message(item: Any) -> bool:
    """Whether it is a message of the commonest kind, which is surely right; to see that takes a tenth of a check."""
    return (
        isinstance(item, dict)
        and item.keys() <= _PLAIN
        and item.get("type", "message") == "message"
        and isinstance(item.get("content"), str)
        and item.get("role") in _ROLES
    )


def _explain_params(params: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """One fault for each wrong field; `input` is gone through item by item, for faults that can be understood."""
    rest = {**params, "input": ""}
    try:
        ResponsesParams.model_validate(rest)
    except ValidationError as error:
        yield from _told(PARAMS, rest, error, "see the Responses API's create params")
    items = params.get("input")
    if not isinstance(items, list):
        if items and not isinstance(items, str):
            yield f"{PARAMS}.input", f"is {_kind(items)}", "write a text or a list of items"
        return
    for position, item in enumerate(items):
        alone = {"input": [item]}
        try:
            ResponsesParams.model_validate(alone)
        except ValidationError as error:
            remedy = 'write items such as {"role": "user", "content": "…"}'
            yield from _told(f"{PARAMS}.input[{position}]", alone, error, remedy, within=("input", 0))


def _told(
    prefix: str, value: Any, error: ValidationError, remedy: str, within: tuple[str | int, ...] = ()
) -> Iterator[tuple[str, str, str]]:
    """One fault for each place in `value`, below `within`: of a union, pydantic tells what is wrong with each branch,
    and names the branches in the path."""
    reasons: dict[tuple[str | int, ...], list[str]] = {}
    for fault in error.errors(include_url=False, include_context=False, include_input=False):
        reason = _NOT_PLAIN.sub("", fault["msg"])
        said = reasons.setdefault(_place(value, fault["loc"], missing=fault["type"] == "missing"), [])
        said.append(reason.removeprefix("Input should be ") if said else reason)
    for place, said in reasons.items():
        if any(place == other[: len(place)] for other in reasons if other != place):
            continue  # the branch that fits so far that it fails deeper inside is the one that was meant
        where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place[len(within) :])
        yield f"{prefix}{where}", " or ".join(dict.fromkeys(said)), remedy


def _place(value: Any, location: tuple[str | int, ...], *, missing: bool) -> tuple[str | int, ...]:
    """`location` without the parts that are not in `value`: names of a union's branches."""
    place: list[str | int] = []
    for part in location:
        if isinstance(part, int) if isinstance(value, list) else isinstance(value, dict) and part in value:
            value = value[part]
            place.append(part)
    return (*place, location[-1]) if missing else tuple(place)


def _explain_tools(tools: list[dict[str, Any]]) -> Iterator[tuple[str, str, str]]:
    names: set[str] = set()
    for position, tool in enumerate(tools):
        where = f"{PARAMS}.tools[{position}]"
        if "name" not in tool and isinstance(tool.get("function"), dict):
            yield where, "is in the Chat Completions form", "lift the fields of `function` up beside `type`"
        elif tool.get("type", "function") == "function":
            name, parameters = tool.get("name"), tool.get("parameters")
            if not isinstance(name, str) or not name:
                yield f"{where}.name", "missing or no text", "give the tool its name"
            elif not TOOL_NAME.fullmatch(name):
                yield f"{where}.name", f"{name!r:.80} is no tool name", "use 1 to 64 of letters, digits, _ and -"
            elif name in names:
                yield f"{where}.name", f"{name!r} is defined twice", "leave one of the two out"
            else:
                names.add(name)
            if parameters is not None and not isinstance(parameters, dict):
                yield f"{where}.parameters", f"is {_kind(parameters)}", "write a JSON schema object"


@lru_cache(maxsize=4096)
def _meant(name: str, known: tuple[str, ...], cutoff: float = 0.85) -> str | None:
    close = get_close_matches(name.lower().replace("-", "_"), known, n=1, cutoff=cutoff)
    return close[0] if close and close[0] != name else None


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    names = {bool: "a boolean", int: "a number", float: "a number", str: "a text", list: "a list", dict: "an object"}
    return names[type(value)] if value != "" else "an empty text"


def main(path: str, begin: str, end: str, options: str) -> None:
    """Scan a part of a file in a process of its own and write the pickled `Scan` to its output; see dataset_index.
    `options` is the path of a file that holds the pickled hidden fields and prompt."""
    with open(options, "rb") as file:
        hidden_fields, prompt = pickle.load(file)  # noqa: S301  written by our own parent
    with open(path, "rb") as file:
        found = scan(Path(path), file, hidden_fields, int(begin), int(end), prompt)
    pickle.dump(found, sys.stdout.buffer)
