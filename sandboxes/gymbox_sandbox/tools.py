"""Tools: what the model may call, described by a method's signature and docstring."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic_core import to_json

from gymbox_sandbox.problems import ToolError

_SECTION = re.compile(r"(Args|Arguments|Parameters|Returns?|Raises|Yields|Examples?|Notes?):\s*")
_ARGUMENT = re.compile(r"(\*{0,2}\w+)\s*(?:\([^)]*\))?:\s*(.*)")


class Tool:
    """One method that the model may call.

    Raises:
        TypeError: the signature cannot be described: an argument without a type, `*args` or `**kwargs`.
    """

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.name = name
        self.function = function
        self._docs = Docs.of(function)
        self._arguments = list(_arguments(name, function))

    @cached_property
    def definition(self) -> dict[str, Any]:
        """The Responses API's function tool.

        `strict` wherever the schema can be: there every argument is required, and one with a default may be null,
        which means the default.
        """
        schema = _tidied(self._model.model_json_schema())
        schema.pop("description", None)
        strict = all(_is_closed(part) for part in [*schema["properties"].values(), *schema.get("$defs", {}).values()])
        if strict:
            schema["required"] = list(schema["properties"])
            for argument in self._arguments:
                if not argument.required:
                    schema["properties"][argument.name] = _nullable(schema["properties"][argument.name])
        return {
            "type": "function",
            "name": self.name,
            "description": self._docs.summary,
            "parameters": schema,
            "strict": strict,
        }

    def validate(self, arguments: Any) -> dict[str, Any]:
        """The arguments as the method takes them.

        Raises:
            ToolError: they are wrong; the text names each fault for the model.
        """
        if not isinstance(arguments, dict):
            raise ToolError(f"Wrong arguments for {self.name}: give one JSON object.")
        # for an argument that has a default, null stands for it
        defaulted = {argument.name for argument in self._arguments if not argument.required}
        given = {name: value for name, value in arguments.items() if value is not None or name not in defaulted}
        try:
            found = self._model.model_validate(given)
        except ValidationError as error:
            raise ToolError(self._explain(error)) from error
        return {a.name: getattr(found, a.field) for a in self._arguments if a.field in found.model_fields_set}

    @cached_property
    def _model(self) -> type[BaseModel]:
        fields: dict[str, Any] = {}
        for argument in self._arguments:
            about = self._docs.arguments.get(argument.name)
            extra: dict[str, Any] = {} if about is None else {"description": about}
            # under an alias, so that an argument may have any name ("schema", "model_id", "_x")
            fields[argument.field] = (
                argument.annotation,
                Field(... if argument.required else argument.default, alias=argument.name, **extra),
            )
        # deferred: a server that is only asked for its definitions, or never, does not pay for all of them at start
        return create_model(self.name, __config__=ConfigDict(extra="forbid"), **fields)

    def _explain(self, error: ValidationError) -> str:
        known = ", ".join(argument.name for argument in self._arguments) or "no arguments"
        lines = [f"Wrong arguments for {self.name}:"]
        for fault in error.errors(include_url=False):
            where = ".".join(str(part) for part in fault["loc"])
            if fault["type"] == "missing":
                lines.append(f"- {where} is missing")
            elif fault["type"] == "extra_forbidden":
                lines.append(f"- {where}: there is no such argument; {self.name} takes {known}")
            else:
                lines.append(f"- {where}: {fault['msg']} (given: {fault['input']!r:.100})")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class _Argument:
    name: str
    field: str
    annotation: Any
    default: Any

    @property
    def required(self) -> bool:
        return self.default is inspect.Parameter.empty


def _arguments(tool: str, function: Callable[..., Any]) -> list[_Argument]:
    parameters = list(inspect.signature(function, eval_str=True).parameters.values())[1:]  # without self
    for parameter in parameters:
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise TypeError(f"tool {tool}: {parameter} cannot be offered to a model; name each argument")
        if parameter.annotation is parameter.empty:
            raise TypeError(f"tool {tool}: argument {parameter.name!r} needs a type")
    return [_Argument(p.name, f"argument_{i}", p.annotation, p.default) for i, p in enumerate(parameters)]


@dataclass(frozen=True, slots=True)
class Docs:
    """What a docstring says: the text before its sections, and of each argument in a Google-style `Args:`."""

    summary: str
    arguments: dict[str, str]

    @classmethod
    def of(cls, function: Callable[..., Any]) -> Docs:
        summary: list[str] = []
        arguments: dict[str, str] = {}
        section, current, indent = "", "", 0
        for line in (inspect.getdoc(function) or "").splitlines():
            heading = _SECTION.fullmatch(line)
            if heading:
                section, current, indent = heading[1], "", 0
            elif not section:
                summary.append(line)
            elif section in ("Args", "Arguments", "Parameters") and line.strip():
                depth = len(line) - len(line.lstrip())
                indent = indent or depth
                found = _ARGUMENT.fullmatch(line.strip()) if depth == indent else None
                if found:
                    current = found[1]
                    arguments[current] = found[2]
                elif current:
                    arguments[current] = f"{arguments[current]} {line.strip()}".strip()
        return cls("\n".join(summary).strip(), arguments)


def result_text(result: Any) -> str:
    """What the model reads: a string as it is, anything else as JSON.

    Raises:
        ValueError: it has no form in JSON.
    """
    text = result if isinstance(result, str) else to_json(result, serialize_unknown=False).decode()
    return text.encode(errors="replace").decode()  # a lone surrogate could not be sent


def _tidied(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with closed objects, and without pydantic's generated titles, which only repeat the names."""

    def tidy(node: Any, *, names: bool = False) -> Any:
        if isinstance(node, list):
            return [tidy(part) for part in node]
        if not isinstance(node, dict):
            return node
        if "properties" in node and not names:
            node = {"additionalProperties": False, **node}
        # below "properties" and "$defs" the keys are names, and "title" may be one
        return {
            key: tidy(value, names=key in ("properties", "$defs") and not names)
            for key, value in node.items()
            if names or key != "title"
        }

    tidied: dict[str, Any] = tidy(schema)
    return tidied


def _is_closed(node: Any) -> bool:
    """Whether every object in this schema names all of its fields, as strict mode demands."""
    if isinstance(node, list):
        return all(_is_closed(part) for part in node)
    if not isinstance(node, dict):
        return True
    if not node.keys() & {"type", "$ref", "anyOf", "oneOf", "enum", "const"}:  # anything at all
        return False
    if node.get("type") == "object":
        properties = node.get("properties", {})
        if node.get("additionalProperties") is not False or set(node.get("required", [])) != set(properties):
            return False
        return all(_is_closed(part) for part in properties.values())
    return all(_is_closed(value) for key, value in node.items() if key in ("items", "anyOf", "prefixItems", "oneOf"))


def _nullable(schema: dict[str, Any]) -> dict[str, Any]:
    """The same, also allowing null; the default moves into the description, for strict mode knows no defaults."""
    default = schema.pop("default", None)
    about = schema.pop("description", "")
    if default is not None:
        about = f"{about} Default: {to_json(default).decode()}.".strip()
    kinds = schema.get("anyOf", [schema])
    if {"type": "null"} not in kinds:
        schema = {"anyOf": [*kinds, {"type": "null"}]}
    return {**schema, **({"description": about} if about else {})}
