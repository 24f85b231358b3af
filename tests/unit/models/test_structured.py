"""Whether an answer is the JSON that was asked for."""

from typing import Any

import pytest
from gymbox.errors import Invalid
from gymbox.models.structured import check_structured, fault_in, wanted_schema
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
        ({"type": "string", "minLength": 2, "pattern": "^a"}, "ab", "ba"),
        ({"type": "integer", "minimum": 1, "multipleOf": 2}, 4, 3),
        ({"type": "array", "uniqueItems": True, "minItems": 1}, [1, 2], [1, 1]),
        ({"allOf": [{"type": "integer"}, {"not": {"const": 3}}]}, 4, 3),
        ({"items": False}, [], [1]),
    ],
)
def test_what_fits_a_schema_is_told_from_what_does_not(schema: dict[str, Any], good: Any, bad: Any) -> None:
    assert fault_in(good, schema) is None
    assert str(fault_in(bad, schema)).startswith("$")


def test_a_fault_is_named_with_its_place() -> None:
    schema = {"properties": {"a": {"items": {"type": "integer"}}}}
    assert fault_in({"a": [1, "x"]}, schema) == '$.a[1]: "x" is not of type "integer"'


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/None"},
        {"$ref": "http://127.0.0.1:9/schema"},
        {"type": "wrong"},
        {"pattern": "(?=a"},
        {"$schema": "http://unknown.example/draft"},
        [],
        3,
        {"const": "\ud800"},
    ],
)
def test_what_is_no_schema_is_refused_by_name_and_nothing_is_fetched(schema: Any) -> None:
    with pytest.raises(Invalid, match="JSON schema"):
        fault_in(1, schema)


def test_a_schema_nested_too_deeply_is_refused() -> None:
    schema: dict[str, Any] = {}
    for _ in range(100_000):
        schema = {"items": schema}
    with pytest.raises(Invalid, match="JSON schema"):
        fault_in(1, schema)


def test_a_pattern_that_could_search_for_ever_does_not() -> None:
    fault_in("a" * 10_000 + "b", {"pattern": r"^(?=a)(a+)+\1*$"})


def test_a_value_that_cannot_be_told_is_a_fault() -> None:
    assert fault_in("\ud800", {"type": "string"})


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
    with pytest.raises(Invalid, match='not of type "object"'):
        check_structured(WANTED, response("completed", {"type": "output_text", "text": "[]"}))


def test_json_that_json_does_not_have_is_no_json() -> None:
    with pytest.raises(Invalid, match="JSON was asked for"):
        check_structured(WANTED, response("completed", {"type": "output_text", "text": '{"a": NaN}'}))


def test_an_object_with_a_schema_is_held_to_it() -> None:
    wanted = {"format": {"type": "json_object", "schema": {"required": ["a"]}}}
    params = ResponsesParams.model_validate({"text": wanted})
    with pytest.raises(Invalid, match="required property"):
        check_structured(params, response("completed", {"type": "output_text", "text": "{}"}))


def test_a_schema_without_a_schema_asks_for_any_json() -> None:
    params = ResponsesParams.model_validate({"text": {"format": {"type": "json_schema", "name": "n"}}})
    check_structured(params, response("completed", {"type": "output_text", "text": "3"}))


def test_text_that_is_asked_for_as_text_is_not_looked_at() -> None:
    params = ResponsesParams.model_validate({"text": {"format": {"type": "text"}, "verbosity": "low"}})
    check_structured(params, response("completed", {"type": "output_text", "text": "prose"}))
    assert wanted_schema(params) is None


def test_a_format_that_is_no_object_is_refused_by_name() -> None:
    with pytest.raises(Invalid, match="text.format"):
        wanted_schema(ResponsesParams.model_validate({"text": {"format": "json"}}))
