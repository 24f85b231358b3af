"""Templates: a YAML file with the system's and the user's part, which a row's fields are filled into.

    system: You are a careful mathematician.      # may be left out
    user: |
      {question}
      Hint: {hints[0]}

A placeholder is a field's name, with `[key]` or `[index]` for what lies deeper; `{{` and `}}` stand for braces. A text
is filled in as it is, a number by its format (`{score:.2f}`), anything else as JSON.
"""

from __future__ import annotations

import hashlib
import json
import re
import string
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from gymbox.datasets.shapes import Misfit
from gymbox.environment import explain
from gymbox.errors import ConfigError, nearest
from gymbox.row_check import PARAMS


class _Filling(string.Formatter):
    """Looks fields up in a row; attributes of Python objects are out of reach."""

    def get_field(self, field_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, str]:
        first, *keys = [part.removesuffix("]") for part in field_name.split("[")]
        if first not in kwargs:
            raise Misfit(first, "the template names it, the row has no such field", nearest(first, list(kwargs)))
        value, where = kwargs[first], first
        for key in keys:
            where += f"[{key}]"
            try:
                value = value[int(key)] if isinstance(value, list) else value[key]
            except (KeyError, IndexError, ValueError, TypeError) as error:
                raise Misfit(
                    where, "the template names it, the row has none", "mend the row or the template"
                ) from error
        if value is None:
            raise Misfit(where, "is null, and the template wants a value", "mend the row or the template")
        return value, first

    def format_field(self, value: Any, format_spec: str) -> str:
        if isinstance(value, bool | list | dict):
            value = json.dumps(value, ensure_ascii=False)
        try:
            return str(format(value, format_spec))
        except ValueError as error:
            raise Misfit(
                "(row)", f"{value!r:.80} cannot be written as {format_spec!r}", "mend the template"
            ) from error


WIDEST = 1000
"""Characters, and digits, that a format may ask for: each row's text would have them."""


class Template(BaseModel):
    """What the model is told, with places for a row's fields."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    user: str
    """The user's message."""
    system: str | None = None
    """A message before it."""

    @classmethod
    def load(cls, path: Path) -> Template:
        """
        Raises:
            ConfigError: there is no such file, it is no such YAML, or a placeholder is wrong.
        """
        try:
            content = yaml.safe_load(path.read_text(encoding="utf-8"))
            template = cls.model_validate(content)
            for part in (template.system or "", template.user):
                for _, name, form, conversion in string.Formatter().parse(part):
                    odd = conversion or "{" in (form or "")  # a field in a format would be one that nobody looks at
                    if name is not None and (not name or name.isdigit() or "." in name or odd):
                        raise ConfigError(
                            f"{path}: {{{name}}} is no placeholder; write {{field}} or {{field[key]}}, "
                            "and {{ for a brace that is meant as one"
                        )
                    if any(int(number) > WIDEST for number in re.findall(r"[0-9]+", form or "")):
                        raise ConfigError(f"{path}: {{{name}:{form}}} is wider than {WIDEST} characters")
        except OSError as error:
            raise ConfigError(f"the template {path} cannot be read: {error.strerror}") from error
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} is not YAML: {error}") from error
        except ValidationError as error:
            raise ConfigError(f"{path} is wrong:\n{explain(error, list(cls.model_fields))}") from error
        except ValueError as error:
            raise ConfigError(f"{path}: {error}; write {{{{ for a brace that is meant as one") from error
        return template

    def fields(self) -> Iterator[str]:
        """Names of the rows' fields that are filled in."""
        for part in (self.system or "", self.user):
            yield from (name.split("[")[0] for _, name, _, _ in string.Formatter().parse(part) if name)

    def rendered(self, fields: dict[str, Any], *, overwrite: bool = False) -> dict[str, Any]:
        """The row with its prompt as `responses_create_params.input`; all its fields stay.

        Args:
            overwrite: also where the row has an input already, which is then lost.

        Raises:
            Misfit: a field is missing, or the row has an input.
        """
        params = fields.get(PARAMS, {})
        if not isinstance(params, dict):
            raise Misfit(PARAMS, "is no object", 'write {"input": […], "tools": […]}')
        if params.get("input") and not overwrite:
            raise Misfit(
                f"{PARAMS}.input",
                "is there already",
                "replace it with --overwrite (in a run: runner.replace_input=true), or use the row as it is",
            )
        filling = _Filling()
        parts = (("system", self.system), ("user", self.user))
        messages = [
            {"role": role, "content": filling.vformat(text, (), fields)} for role, text in parts if text is not None
        ]
        return {**fields, PARAMS: {**params, "input": messages}}


@dataclass(frozen=True, slots=True)
class Prompt:
    """A template that makes the inputs of an environment's rows in a run; it sees nothing that the agent may not."""

    template: Template
    sha256: str
    """Hex digest of the file's bytes."""
    replace: bool = False
    """Also of rows that have an input already."""

    @classmethod
    def load(cls, path: Path, hidden: Collection[str], *, replace: bool = False) -> Self:
        """
        Args:
            hidden: fields of which only `verify` may know.

        Raises:
            ConfigError: see `Template.load`; or it would show the agent what is hidden from it.
        """
        template = Template.load(path)
        for name in template.fields():
            if name in hidden:
                raise ConfigError(f"{path}: {{{name}}} is hidden from the agent, so it cannot be part of its prompt")
        return cls(template, hashlib.sha256(path.read_bytes()).hexdigest(), replace)

    @property
    def key(self) -> str:
        """Another for another way to fill rows in."""
        return f"{self.sha256} {self.replace}"

    def rendered(self, row: dict[str, Any]) -> dict[str, Any]:
        """See `Template.rendered`."""
        return self.template.rendered(row, overwrite=self.replace)

    def filled(self, row: dict[str, Any]) -> dict[str, Any] | tuple[str, str, str]:
        """The row with its input; or what is wrong with it: field, reason, remedy."""
        try:
            return self.rendered(row)
        except Misfit as error:
            return error.field, error.reason, error.remedy
