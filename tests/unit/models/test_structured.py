"""Whether an answer is the JSON that was asked for."""

from typing import Any

import pytest
from gymbox.errors import Invalid
from gymbox.models.structured import check_structured, fault_in
from gymbox_sandbox.responses import Response, ResponsesParams


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "integer"}, 3.0, 3.5),
        ({"type": "integer"}, 3, True),
        ({"type": ["string", "null"]}, None, 1),
        ({"type": "number"}, 1, "1"),
        ({"enum": ["a", 1]}, 1, "b"),
        ({"const": "a"}, "a", "b"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, None, 1),
        ({"oneOf": [{"const": 1}, {"const": 2}]}, 2, 3),
        ({"type": "array", "items": {"type": "string"}}, ["a"], ["a", 1]),
        ({"properties": {"a": {"type": "string"}}, "required": ["a"]}, {"a": "x", "b": 1}, {"b": 1}),
        ({"properties": {"a": {}}, "additionalProperties": False}, {"a": 1}, {"b": 1}),
        ({"additionalProperties": {"type": "integer"}}, {"a": 1}, {"a": "x"}),
        ({"$ref": "#/$defs/A", "$defs": {"A": {"type": "string"}}}, "x", 1),
        ({"type": "object", "pattern": "whatever"}, {}, []),
        ({"items": False}, [], [1]),
    ],
)
def test_what_fits_a_schema_is_told_from_what_does_not(schema: dict[str, Any], good: Any, bad: Any) -> None:
    assert fault_in(good, schema, schema) is None
    assert str(fault_in(bad, schema, schema)).startswith("$")


def test_a_reference_that_leads_nowhere_holds_nothing_back() -> None:
    assert fault_in(1, {"$ref": "#/$defs/None"}, {}) is None


WANTED = ResponsesParams.model_validate({"text": {"format": {"type": "json_object"}}})


def response(status: str, *parts: dict[str, Any]) -> Response:
    return Response.model_validate({"status": status, "output": [{"role": "assistant", "content": list(parts)}]})


def test_a_refusal_a_cut_answer_and_a_call_owe_no_json() -> None:
    check_structured(WANTED, response("completed", {"type": "refusal", "refusal": "no"}))
    check_structured(WANTED, response("incomplete", {"type": "output_text", "text": '{"a'}))
    call = {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}
    check_structured(WANTED, Response.model_validate({"status": "completed", "output": [call]}))


def test_an_object_that_was_asked_for_must_be_one() -> None:
    check_structured(WANTED, response("completed", {"type": "output_text", "text": "{}"}))
    with pytest.raises(Invalid, match="not of type 'object'"):
        check_structured(WANTED, response("completed", {"type": "output_text", "text": "[]"}))
