"""What a model is offered of a method, and what it is told when it calls it wrongly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest
from gymbox_sandbox import ResourcesServer, ToolError, tool
from gymbox_sandbox.resources import tools_of
from gymbox_sandbox.tools import Tool, result_text
from pydantic import BaseModel, Field


class Point(BaseModel):
    x: int
    title: str


class Loose(BaseModel):
    x: int = 3


class Shop(ResourcesServer):
    @tool
    async def order(self, item: str, count: int = 1, size: Literal["s", "l"] | None = None) -> str:
        """Order something.

        It comes tomorrow.

        Args:
            item: What to order,
                by its name.
            count (int): How many.

        Returns:
            The order's number.
        """
        return f"{count} {item} {size}"

    @tool
    def mark(self, at: Point, more: list[Point]) -> None:
        """Mark places."""

    @tool
    async def free(self, options: dict[str, Any]) -> None: ...

    @tool
    async def loose(self, point: Loose) -> None: ...

    @tool
    async def odd(self, schema: Annotated[int, Field(ge=1, description="At least one.")], model_id: str) -> str:
        """Names that pydantic keeps for itself."""
        return f"{schema} {model_id}"

    async def not_offered(self) -> None: ...


def definition(name: str) -> dict[str, Any]:
    return tools_of(Shop)[name].definition


def test_only_marked_methods_are_tools() -> None:
    assert [found["name"] for found in Shop().tool_definitions()] == ["order", "mark", "free", "loose", "odd"]


def test_description_is_the_docstring_before_its_sections() -> None:
    assert definition("order")["description"] == "Order something.\n\nIt comes tomorrow."


def test_argument_descriptions_come_from_the_docstring_and_from_annotations() -> None:
    assert definition("order")["parameters"]["properties"]["item"]["description"] == "What to order, by its name."
    assert definition("odd")["parameters"]["properties"]["schema"]["description"] == "At least one."


def test_strict_schema_requires_every_argument_and_lets_one_with_a_default_be_null() -> None:
    found = definition("order")
    assert found["strict"] is True
    assert found["parameters"]["additionalProperties"] is False
    assert found["parameters"]["required"] == ["item", "count", "size"]
    assert found["parameters"]["properties"]["count"] == {
        "anyOf": [{"type": "integer"}, {"type": "null"}],
        "description": "How many. Default: 1.",
    }
    assert found["parameters"]["properties"]["size"] == {
        "anyOf": [{"enum": ["s", "l"], "type": "string"}, {"type": "null"}]
    }


def test_nested_models_are_closed_and_keep_a_field_called_title() -> None:
    found = definition("mark")
    assert found["strict"] is True
    assert found["parameters"]["$defs"]["Point"] == {
        "type": "object",
        "properties": {"x": {"type": "integer"}, "title": {"type": "string"}},
        "required": ["x", "title"],
        "additionalProperties": False,
    }


@pytest.mark.parametrize("name", ["free", "loose"])
def test_a_schema_that_strict_mode_cannot_express_says_so(name: str) -> None:
    assert definition(name)["strict"] is False


def test_null_stands_for_the_default() -> None:
    assert tools_of(Shop)["order"].validate({"item": "tea", "count": None, "size": None}) == {"item": "tea"}


def test_numbers_in_strings_are_read_as_numbers() -> None:
    assert tools_of(Shop)["order"].validate({"item": "tea", "count": "2"}) == {"item": "tea", "count": 2}


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        ({"count": 2}, ["- item is missing"]),
        ({"item": "tea", "amount": 1}, ["- amount: there is no such argument; order takes item, count, size"]),
        (
            {"item": "tea", "count": "two"},
            ["- count: Input should be a valid integer, unable to parse string as an integer (given: 'two')"],
        ),
        ({"item": 3, "argument_1": 2}, ["- item: Input should be a valid string (given: 3)", "- argument_1: there"]),
    ],
)
def test_wrong_arguments_are_named_one_by_one(arguments: dict[str, Any], lines: list[str]) -> None:
    with pytest.raises(ToolError) as caught:
        tools_of(Shop)["order"].validate(arguments)
    told = str(caught.value).splitlines()
    assert told[0] == "Wrong arguments for order:"
    assert all(line.startswith(expected) for line, expected in zip(told[1:], lines, strict=True))


def test_arguments_that_are_no_object_are_refused() -> None:
    with pytest.raises(ToolError, match="one JSON object"):
        tools_of(Shop)["order"].validate(["tea"])


async def test_arguments_may_have_names_that_pydantic_keeps_for_itself() -> None:
    assert await Shop().call_tool("odd", {"schema": 1, "model_id": "m"}) == "1 m"


async def test_an_unknown_tool_is_told_which_ones_there_are() -> None:
    with pytest.raises(ToolError, match="There is no tool 'oder'. Tools: order, mark"):
        await Shop().call_tool("oder", {})


async def test_a_server_without_tools_says_so() -> None:
    with pytest.raises(ToolError, match="Tools: none"):
        await ResourcesServer().call_tool("order", {})


def untyped(self: Any, item) -> None:  # type: ignore[no-untyped-def]
    ...


def starred(self: Any, *items: str) -> None: ...


@pytest.mark.parametrize(("function", "told"), [(untyped, "'item' needs a type"), (starred, "name each argument")])
def test_a_signature_that_cannot_be_described_is_refused(function: Any, told: str) -> None:
    with pytest.raises(TypeError, match=told):
        Tool("buy", function)


class SmallShop(Shop):
    async def order(self, item: str) -> str:  # type: ignore[override]
        return item

    @tool
    def mark(self, at: Point) -> None:  # type: ignore[override]
        """Mark a place."""


def test_a_subclass_inherits_tools_and_may_replace_or_withdraw_them() -> None:
    found = tools_of(SmallShop)
    assert "order" not in found
    assert found["mark"].definition["description"] == "Mark a place."
    assert "free" in found


@dataclass
class Report:
    city: str


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ("as it is", "as it is"),
        ({"a": [1, None]}, '{"a":[1,null]}'),
        (Point(x=1, title="t"), '{"x":1,"title":"t"}'),
        (Report("Łódź"), '{"city":"Łódź"}'),
        (None, "null"),
        ("\ud800", "?"),
    ],
)
def test_results_are_text_as_they_are_or_json(result: Any, text: str) -> None:
    assert result_text(result) == text


def test_a_result_without_json_form_is_refused() -> None:
    with pytest.raises(ValueError, match="object"):
        result_text(object())
