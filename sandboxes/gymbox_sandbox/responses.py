"""Responses: the part of the OpenAI Responses API that gymbox reads and writes, as lean pydantic models.

Unknown fields are kept (``extra="allow"``), so what a provider adds survives a trip through gymbox, and unknown item
types pass through as `OtherItem`. Source of the shapes: the OpenAI Responses API reference. The training fields
`prompt_token_ids`, `generation_token_ids` and `generation_log_probs` on output items are NeMo Gym's.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

from gymbox_sandbox.chat_history import is_chat_shaped, items_from_message


class Wire(BaseModel):
    """Base of wire models: unknown fields are kept; dumped without what was never set."""

    model_config = ConfigDict(extra="allow", defer_build=True)

    def dump(self) -> dict[str, Any]:
        """JSON-ready dict without unset fields and without nulls that nobody set."""
        return self.model_dump(mode="json", exclude_unset=True)


class TypedItem(Wire):
    """An item; its `type` is always dumped, since it tells items apart."""

    def model_post_init(self, context: Any) -> None:
        self.model_fields_set.add("type")


class Message(TypedItem):
    """A message of any role; `content` is a string or a list of parts (`input_text`, `output_text`, `refusal`, …)."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[dict[str, Any]] = ""
    id: str | None = None
    status: str | None = None

    @property
    def text(self) -> str:
        """All text of the message, parts joined; refusals and other parts count as nothing."""
        if isinstance(self.content, str):
            return self.content
        return "".join(str(part.get("text") or "") for part in self.content)


class FunctionCall(TypedItem):
    """The model asks for a tool; `arguments` is the JSON text as the model wrote it, valid or not."""

    type: Literal["function_call"] = "function_call"
    call_id: str
    name: str
    arguments: str = "{}"
    id: str | None = None
    status: str | None = None


class FunctionCallOutput(TypedItem):
    """What the tool answered to `call_id`."""

    type: Literal["function_call_output"] = "function_call_output"
    call_id: str
    output: str | list[dict[str, Any]]
    id: str | None = None
    status: str | None = None


class Reasoning(TypedItem):
    """The model's reasoning; kept together with the item that follows it."""

    type: Literal["reasoning"] = "reasoning"
    id: str | None = None
    summary: list[dict[str, Any]] = Field(default_factory=list)


class OtherItem(Wire):
    """An item of a type gymbox does not interpret; carried as it is."""

    type: str


_KNOWN = ("message", "function_call", "function_call_output", "reasoning")


def _item_kind(value: Any) -> str:
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    if kind is None and (isinstance(value, dict) and "role" in value):
        return "message"
    return kind if kind in _KNOWN else "other"


Item = Annotated[
    Annotated[Message, Tag("message")]
    | Annotated[FunctionCall, Tag("function_call")]
    | Annotated[FunctionCallOutput, Tag("function_call_output")]
    | Annotated[Reasoning, Tag("reasoning")]
    | Annotated[OtherItem, Tag("other")],
    Discriminator(_item_kind),
]


_SHAPES: dict[str, type] = {"reasoning": dict, "text": dict, "include": list}
"""Fields that pass through as they are, and that converters look into."""
_NULLABLE_LISTS = ("input", "tools")
_NUMBER = (int, float, type(None))
_CALLED: dict[type, str] = {dict: "an object", list: "a list"}


class ResponsesParams(Wire):
    """`POST /v1/responses`: what to ask of a model. Sampling fields not named here pass through as they are."""

    input: str | list[Item] = Field(default_factory=list)
    instructions: str | None = None
    model: str | None = None
    tools: list[dict[str, Any]] = Field(default_factory=list)
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stream: bool | None = None
    metadata: dict[str, Any] | None = None

    @model_validator(mode="before")
    @classmethod
    def _accept_chat_and_nulls(cls, data: Any) -> Any:
        """Chat-shaped messages in `input` become items; a null where a list belongs counts as not given."""
        if not isinstance(data, dict):
            return data
        data = {name: value for name, value in data.items() if value is not None or name not in _NULLABLE_LISTS}
        for name, kind in _SHAPES.items():
            if data.get(name) is not None and not isinstance(data[name], kind):
                raise ValueError(f"{name} must be {_CALLED[kind]}, not {type(data[name]).__name__}")
        if isinstance(data.get("input"), list) and any(is_chat_shaped(item) for item in data["input"]):
            data["input"] = [
                item
                for given in data["input"]
                for item in (items_from_message(given) if is_chat_shaped(given) else [given])
            ]
        return data

    def dump_without_input(self) -> dict[str, Any]:
        """As `dump`, without the history, which may be large."""
        return self.model_dump(mode="json", exclude_unset=True, exclude={"input"})

    def with_defaults(self, defaults: dict[str, Any]) -> Self:
        """With these fields where they are unset or null; the history is neither copied nor looked at again.

        Raises:
            pydantic.ValidationError: a default is wrong.
        """
        if not defaults:
            return self
        given = {name: value for name, value in self.dump_without_input().items() if value is not None}
        merged = type(self).model_validate({**defaults, **given})
        if "input" in self.model_fields_set:
            merged.input = self.input
        return merged

    @property
    def items(self) -> list[Item]:
        """`input` as a list of items: a bare string is one user message."""
        return [Message(role="user", content=self.input)] if isinstance(self.input, str) else self.input


class Usage(Wire):
    """Token counts of one or several model calls."""

    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0

    @model_validator(mode="after")
    def _counts(self) -> Self:
        """What providers tell in detail is counted with, too."""
        for name, details in (self.model_extra or {}).items():
            if not name.endswith("_tokens_details") or details is None:
                continue
            if not isinstance(details, dict):
                raise ValueError(f"{name} must be an object")
            for part, count in details.items():
                if part.endswith("_tokens") and not isinstance(count, _NUMBER):
                    raise ValueError(f"{name}.{part} must be a number")
        return self

    def __add__(self, other: Usage) -> Usage:
        """Both together, the details that providers add included."""
        return Usage.model_validate(_sum(self.dump(), other.dump()))


class Response(Wire):
    """An answer of a model, or the whole trajectory of an agent (calls, outputs, reasoning, messages in order)."""

    id: str = ""
    object: Literal["response"] = "response"
    created_at: float = 0
    model: str = ""
    status: str | None = None
    output: list[Item] = Field(default_factory=list)
    incomplete_details: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    usage: Usage | None = None

    @property
    def output_text(self) -> str:
        """Text of the last assistant message, or `""`."""
        messages = [item for item in self.output if isinstance(item, Message) and item.role == "assistant"]
        return messages[-1].text if messages else ""

    @property
    def function_calls(self) -> list[FunctionCall]:
        """The calls in `output`, in order."""
        return [item for item in self.output if isinstance(item, FunctionCall)]


def _sum(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Numbers added, in nested details too; of anything else, the first."""
    total = dict(one)
    for name, value in other.items():
        had = total.get(name)
        if isinstance(value, dict):
            total[name] = _sum(had if isinstance(had, dict) else {}, value)
        elif isinstance(value, int | float):
            total[name] = value + (had if isinstance(had, int | float) else 0)
        elif had is None:
            total[name] = value
    return total
