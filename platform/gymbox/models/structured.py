"""Structured output: whether an answer is the JSON that was asked for.

Some servers accept a JSON schema and do not enforce it. Whoever asked for structure must not be handed prose as if it
were structured, so an answer that does not fit is no usable answer.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from gymbox_sandbox.responses import Message, Response, ResponsesParams

from gymbox.errors import Invalid
from gymbox.models.strict_json import strict_json

if TYPE_CHECKING:
    from jsonschema_rs import Validator


def wanted_schema(params: ResponsesParams) -> Any:
    """The JSON schema that `text.format` asks for, or None where it asks for none.

    Raises:
        Invalid: what it asks for is no JSON schema, or one that leads elsewhere: nothing is fetched.
    """
    text = (params.model_extra or {}).get("text") or {}
    wanted = text.get("format") or {}
    if not isinstance(wanted, dict):
        raise Invalid(f"text.format must be an object, not {type(wanted).__name__}")
    if wanted.get("type") not in ("json_schema", "json_object"):
        return None
    schema = wanted.get("schema")
    if schema is None:
        return {"type": "object"} if wanted["type"] == "json_object" else True
    _validator_of(schema)
    return schema


def check_structured(params: ResponsesParams, response: Response) -> None:
    """Let a response pass that asks for tools, refuses or was cut off, or whose text is what `text.format` asks for.

    Raises:
        Invalid: its text is not that JSON.
    """
    if not (params.model_extra or {}).get("text") or response.status != "completed":
        return
    schema = wanted_schema(params)
    if schema is None or response.function_calls or _refuses(response):
        return
    try:
        value = strict_json(response.output_text)
    except (ValueError, RecursionError) as error:
        raise Invalid(
            f"JSON was asked for, and the server did not enforce it: {response.output_text!r:.200}"
        ) from error
    fault = fault_in(value, schema)
    if fault is not None:
        raise Invalid(f"a JSON schema was asked for, and the server did not enforce it: {fault}")


def _refuses(response: Response) -> bool:
    return any(
        part.get("type") == "refusal"
        for item in response.output
        if isinstance(item, Message) and isinstance(item.content, list)
        for part in item.content
    )


def fault_in(value: Any, schema: Any) -> str | None:
    """The first place where `value` does not fit the schema, as `$.a[0]: why`; None where it fits.

    Raises:
        Invalid: the schema is none.
    """
    validator = _validator_of(schema)
    try:
        fault = next(validator.iter_errors(value), None)
    except ValueError as error:  # nested deeper, or of other characters, than can be told
        return f"$: {error}"
    if fault is None:
        return None
    steps = (f".{step}" if isinstance(step, str) else f"[{step}]" for step in fault.instance_path)
    return f"${''.join(steps)}: {fault.message:.200}"


def _validator_of(schema: Any) -> Validator:
    try:
        return _validator(json.dumps(schema, sort_keys=True))
    except (ValueError, TypeError, RecursionError) as error:
        raise Invalid(f"text.format: it has no usable JSON schema: {str(error).partition('\n')[0]}") from error


@lru_cache(maxsize=256)
def _validator(schema: str) -> Validator:
    from jsonschema_rs import FancyRegexOptions, validator_for

    # offline: a caller's schema must not make this server fetch an address; the limit: nor search for ever
    return validator_for(json.loads(schema), offline=True, pattern_options=FancyRegexOptions(backtrack_limit=100_000))
