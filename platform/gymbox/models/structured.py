"""Structured output: whether an answer is the JSON that was asked for.

Some servers accept a JSON schema and do not enforce it. Whoever asked for structure must not be handed prose as if it
were structured, so an answer that does not fit is no usable answer.
"""

from __future__ import annotations

import json
from typing import Any

from gymbox_sandbox.responses import Message, Response, ResponsesParams

from gymbox.errors import Invalid

_TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "number": (int, float),
    "integer": int,
    "boolean": bool,
    "null": type(None),
}


def check_structured(params: ResponsesParams, response: Response) -> None:
    """Let a response pass that asks for tools, refuses or was cut off, or whose text is what `text.format` asks for.

    Raises:
        Invalid: its text is not that JSON.
    """
    text = (params.model_extra or {}).get("text") or {}
    wanted = text.get("format") or {}
    refused = any(
        part.get("type") == "refusal"
        for item in response.output
        if isinstance(item, Message) and isinstance(item.content, list)
        for part in item.content
    )
    if wanted.get("type") not in ("json_schema", "json_object") or response.status != "completed":
        return
    if response.function_calls or refused:
        return
    try:
        value = json.loads(response.output_text)
    except ValueError as error:
        raise Invalid(
            f"JSON was asked for, and the server did not enforce it: {response.output_text!r:.200}"
        ) from error
    schema = wanted.get("schema") if wanted["type"] == "json_schema" else {"type": "object"}
    fault = fault_in(value, schema or {}, schema or {})
    if fault is not None:
        raise Invalid(f"a JSON schema was asked for, and the server did not enforce it: {fault}")


def fault_in(value: Any, schema: Any, root: dict[str, Any], where: str = "$") -> str | None:
    """The first place where `value` does not fit, or None.

    Checks the keywords that structured output is made of (type, enum, const, properties, required,
    additionalProperties, items, anyOf, oneOf, local $ref); others count as met.
    """
    if not isinstance(schema, dict):
        return None if schema is not False else f"{where} is not allowed"
    if "$ref" in schema:
        return fault_in(value, _resolved(schema["$ref"], root), root, where)
    for keyword in ("anyOf", "oneOf"):
        choices = schema.get(keyword)
        if choices and all(fault_in(value, choice, root, where) for choice in choices):
            return f"{where} fits none of {keyword}"
    if "enum" in schema and value not in schema["enum"]:
        return f"{where} is not one of {schema['enum']!r:.100}"
    if "const" in schema and value != schema["const"]:
        return f"{where} is not {schema['const']!r:.100}"
    if "type" in schema and not _is_of(value, schema["type"]):
        return f"{where} is not of type {schema['type']!r}"
    if isinstance(value, dict):
        return _fault_in_object(value, schema, root, where)
    if isinstance(value, list) and "items" in schema:
        faults = (fault_in(part, schema["items"], root, f"{where}[{index}]") for index, part in enumerate(value))
        return next((fault for fault in faults if fault), None)
    return None


def _fault_in_object(value: dict[str, Any], schema: dict[str, Any], root: dict[str, Any], where: str) -> str | None:
    for name in schema.get("required", []):
        if name not in value:
            return f"{where} has no {name!r}"
    known = schema.get("properties", {})
    for name, part in value.items():
        fault = fault_in(part, known.get(name, schema.get("additionalProperties", True)), root, f"{where}.{name}")
        if fault is not None:
            return fault
    return None


def _is_of(value: Any, kinds: str | list[str]) -> bool:
    names = [kinds] if isinstance(kinds, str) else kinds
    if isinstance(value, bool):
        return "boolean" in names
    if isinstance(value, float) and value.is_integer() and "integer" in names:
        return True
    return any(isinstance(value, _TYPES.get(name, object)) for name in names)


def _resolved(ref: Any, root: dict[str, Any]) -> Any:
    found: Any = root
    for step in str(ref).removeprefix("#").strip("/").split("/"):
        if step:
            found = found.get(step, True) if isinstance(found, dict) else True
    return found
