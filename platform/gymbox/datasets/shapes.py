"""Shapes: rows of other forms as task rows, which have `responses_create_params`, and task rows as Chat rows.

    | the row has                     | becomes                                                              |
    |---------------------------------|----------------------------------------------------------------------|
    | `responses_create_params`       | itself, as it is: rows of gymbox and of NeMo Gym                     |
    | `messages`, or a list `prompt`  | `input`; `tools` and sampling fields beside it go into the params    |
    | a text field that is named      | one message of the user                                              |

Everything else of a row stays beside the params, where `verify` finds it; `hide` puts fields where the agent does not
see them. Chat messages are converted as for a Chat endpoint (`gymbox.models.chat_requests`): what has no place is
refused by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gymbox_sandbox.responses import ResponsesParams
from pydantic import ValidationError

from gymbox.errors import Invalid, nearest
from gymbox.models.chat_requests import chat_from_params, items_from_messages, params_from_chat
from gymbox.row_check import PARAMS

CHAT_PARAMS = (
    *("tools", "tool_choice", "parallel_tool_calls", "response_format", "reasoning_effort", "temperature", "top_p"),
    *("max_tokens", "max_completion_tokens", "stop", "seed", "presence_penalty", "frequency_penalty"),
)
"""Fields beside `messages` that are of the request."""


class Misfit(Exception):
    """A row that is no task and cannot be made one: which field, why, and how to mend it."""

    def __init__(self, field: str, reason: str, remedy: str) -> None:
        super().__init__(f"{field}: {reason}; {remedy}")
        self.field, self.reason, self.remedy = field, reason, remedy


@dataclass(frozen=True, slots=True)
class Shaping:
    """How rows become tasks."""

    prompt_field: str | None = None
    """Of rows without params or messages: the field whose text is the user's message."""
    id_field: str | None = None
    """The field that becomes `id`."""
    hide: Sequence[str] = ()
    """Fields to move into `verifier_metadata`."""
    drop: Sequence[str] = ()
    """Fields to leave out."""
    gold: bool = False
    """Take an answer with which Chat messages end for the gold reply; else such a row is refused."""

    def task(self, fields: dict[str, Any]) -> dict[str, Any]:
        """The row as a task row; the very same object where nothing is to be changed.

        Raises:
            Misfit: it cannot be made one.
        """
        for name in (*self.hide, *self.drop, *filter(None, (self.id_field,))):
            if name not in fields:
                raise Misfit(name, "there is no such field", nearest(name, list(fields)))
        if self.drop:
            fields = {name: value for name, value in fields.items() if name not in self.drop}
        if PARAMS not in fields:
            fields = self._shaped(fields)
        if self.id_field is not None and self.id_field != "id":
            if "id" in fields:
                raise Misfit("id", f"would be replaced by {self.id_field!r}", "--drop id, or leave --id-field out")
            fields = {"id" if name == self.id_field else name: value for name, value in fields.items()}
        if self.hide:
            fields = self._hidden(fields)
        return fields

    def _shaped(self, fields: dict[str, Any]) -> dict[str, Any]:
        chat = next((name for name in ("messages", "prompt") if isinstance(fields.get(name), list)), None)
        if chat is not None and self.prompt_field is None:
            return self._from_chat(fields, chat)
        if self.prompt_field is None:
            hint = nearest(PARAMS, list(fields)) if "params" in "".join(fields) else "name it with --prompt-field"
            raise Misfit(PARAMS, "missing, and there are no `messages`; which field asks the task?", hint)
        text = fields.get(self.prompt_field)
        if not isinstance(text, str) or not text.strip():
            if self.prompt_field not in fields:
                raise Misfit(self.prompt_field, "there is no such field", nearest(self.prompt_field, list(fields)))
            raise Misfit(self.prompt_field, "is no text, or empty", "it must hold what the user asks")
        rest = {name: value for name, value in fields.items() if name != self.prompt_field}
        return {PARAMS: {"input": [{"role": "user", "content": text}]}, **rest}

    def _from_chat(self, fields: dict[str, Any], chat: str) -> dict[str, Any]:
        messages = list(fields[chat])
        of_request = {name: fields[name] for name in CHAT_PARAMS if fields.get(name) is not None}
        rest = {name: value for name, value in fields.items() if name != chat and name not in CHAT_PARAMS}
        if messages and isinstance(messages[-1], dict) and messages[-1].get("role") == "assistant":
            if not self.gold:
                reason = "end with the assistant's answer, which the agent would see"
                raise Misfit(chat, reason, "take it for the gold reply with --gold, or take it out")
            if "gold_replies" in rest:
                raise Misfit("gold_replies", "are there already", "leave --gold out")
            try:
                rest["gold_replies"] = [items_from_messages([messages.pop()])]
            except Invalid as error:
                raise Misfit(f"{chat}[-1]", error.detail, "mend it") from error
        if not messages:
            raise Misfit(chat, "holds no question", "put the messages for the model there")
        try:
            params = params_from_chat({"messages": messages, **of_request})
        except Invalid as error:
            raise Misfit(chat, error.detail, "mend it, or --drop the field") from error
        return {PARAMS: params.model_dump(mode="json", exclude_unset=True), **rest}

    def _hidden(self, fields: dict[str, Any]) -> dict[str, Any]:
        hidden = fields.get("verifier_metadata", {})
        if not isinstance(hidden, dict):
            raise Misfit("verifier_metadata", "is no object", "write {…}, or leave it out")
        if taken := [name for name in self.hide if name in hidden]:
            raise Misfit(f"verifier_metadata.{taken[0]}", "is there already", "leave it out of --hide")
        rest = {name: value for name, value in fields.items() if name not in (*self.hide, "verifier_metadata")}
        return {**rest, "verifier_metadata": {**hidden, **{name: fields[name] for name in self.hide}}}


def chat_row(fields: dict[str, Any]) -> dict[str, Any]:
    """A task row as a Chat row: `messages`, `tools` and what else is of the request, then the row's other fields.

    Raises:
        Misfit: the Chat format has no place for something, by name.
    """
    try:
        params = ResponsesParams.model_validate(fields.get(PARAMS))
        request = chat_from_params(params)
    except ValidationError as error:
        raise Misfit(PARAMS, "is not as it should be", "see: gymbox dataset validate") from error
    except Invalid as error:
        raise Misfit(PARAMS, error.detail, "leave these rows as they are") from error
    rest = {name: value for name, value in fields.items() if name != PARAMS}
    if taken := [name for name in request if name in rest]:
        raise Misfit(taken[0], "stands beside the params and in them", "--drop it")
    return {**request, **rest}
