"""Chat requests: what is asked of a model, from one format to the other.

    params_from_chat    a Chat request     -> ResponsesParams   (a caller speaks Chat to us)
    chat_from_params    ResponsesParams    -> a Chat request    (we speak Chat to an endpoint)

What the other format has no place for is refused by name (`Invalid`), never dropped. Fields that neither side names
(`seed`, `top_k`, `stop`, …) pass through both ways as they are. How a history becomes messages: see `chat_messages`.

    | Chat                                          | Responses                                                   |
    |-----------------------------------------------|-------------------------------------------------------------|
    | `max_completion_tokens`, `max_tokens`         | `max_output_tokens`; sent as `max_tokens`, unless told else |
    | `reasoning_effort`                            | `reasoning.effort`; other fields of `reasoning` stay there  |
    | `response_format`, `verbosity`                | `text.format`, `text.verbosity`                             |
    | `logprobs`                                    | `include: [message.output_text.logprobs]`                   |
    | a tool's `function`, `strict` false if unset  | a flat tool, `strict` said                                  |
    | `tool_choice` (all forms)                     | `tool_choice`                                               |
    | a message of `system`                         | `instructions`, a message of `system` or `developer`        |

Not sent to a Chat endpoint, for they say how an answer is delivered or bound tools that run at the provider: `stream`,
`stream_options`, `max_tool_calls`, `truncation: disabled`, `include: [reasoning.encrypted_content]`,
`reasoning.summary` (an endpoint tells of its reasoning or does not). `metadata.extra_body` and
`metadata.chat_template_kwargs`, each a JSON object as text, are sent as fields of the request, as NeMo Gym does.
"""

from __future__ import annotations

from typing import Any

from gymbox_sandbox.chat_history import items_from_message
from gymbox_sandbox.problems import faults
from gymbox_sandbox.responses import ResponsesParams
from pydantic import ValidationError

from gymbox.errors import Invalid
from gymbox.models.chat_messages import messages_from_items, others
from gymbox.models.request_fields import items_of_each, object_in, refuse, take_tools
from gymbox.models.structured import wanted_schema

LOGPROBS = "message.output_text.logprobs"

_CHAT_ONLY = ("audio", "function_call", "functions", "prediction", "web_search_options")
_RESPONSES_ONLY = ("background", "context_management", "conversation", "previous_response_id", "prompt")
_NOT_OF_CHAT = (*_RESPONSES_ONLY, "input", "instructions", "max_output_tokens", "text")
"""Would be taken for something else where a Chat request is turned into params."""
_NO_EFFECT_ON_CHAT = ("include", "max_tool_calls", "stream", "stream_options", "truncation")
_OF_FUNCTION = ("name", "description", "parameters", "strict")


# --- a Chat request to params


def params_from_chat(body: dict[str, Any]) -> ResponsesParams:
    """The Responses params that ask for the same.

    Raises:
        Invalid: a field or message that cannot be expressed, by name.
    """
    body = {name: value for name, value in body.items() if value is not None}
    refuse(body, _CHAT_ONLY, "the Responses format")
    refuse(body, _NOT_OF_CHAT, "the Chat format")
    if body.pop("n", 1) != 1:
        raise Invalid("n: only one choice can be asked for")
    if body.pop("modalities", ["text"]) != ["text"]:
        raise Invalid("modalities: only text can be asked for")
    items = items_from_messages(body.pop("messages", None))
    limits = [body.pop(name) for name in ("max_completion_tokens", "max_tokens") if name in body]
    if limits:
        if limits[0] != limits[-1]:
            raise Invalid("max_tokens and max_completion_tokens say two things; give one")
        body["max_output_tokens"] = limits[0]
    if "reasoning_effort" in body:
        given = body.get("reasoning", {})
        if not isinstance(given, dict) or given.get("effort", body["reasoning_effort"]) != body["reasoning_effort"]:
            raise Invalid("reasoning and reasoning_effort say two things; give one")
        body["reasoning"] = {**given, "effort": body.pop("reasoning_effort")}
    text: dict[str, Any] = {}
    if "response_format" in body:
        text["format"] = _format_from_chat(body.pop("response_format"))
    if "verbosity" in body:
        text["verbosity"] = body.pop("verbosity")
    if text:
        body["text"] = text
    if body.pop("logprobs", False):
        body["include"] = [LOGPROBS]
    if "tools" in body:
        if not isinstance(body["tools"], list):
            raise Invalid(f"tools: a list is needed, not {type(body['tools']).__name__}")
        body["tools"] = [_tool_from_chat(tool) for tool in body["tools"]]
    if isinstance(body.get("tool_choice"), dict):
        body["tool_choice"] = _choice_from_chat(body["tool_choice"])
    body.pop("stream_options", None)
    try:
        return ResponsesParams.model_validate({**body, "input": items})
    except ValidationError as error:
        raise Invalid(faults(error)) from error


def items_from_messages(messages: Any) -> list[dict[str, Any]]:
    """The items of a Chat history.

    Raises:
        Invalid: a message that cannot be expressed, by its number.
    """
    return items_of_each(messages, items_from_message, "Chat")


def _tool_from_chat(tool: Any) -> dict[str, Any]:
    if not isinstance(tool, dict) or tool.get("type") != "function" or not isinstance(tool.get("function"), dict):
        kind = tool.get("type") if isinstance(tool, dict) else tool
        raise Invalid(f"tools: only function tools can be carried over, not {kind!r:.100}")
    # what the one format leaves out is loose, what the other leaves out is strict
    return {"strict": False, **others(tool, ("function",)), **others(tool["function"], ()), "type": "function"}


def _choice_from_chat(choice: dict[str, Any]) -> dict[str, Any]:
    kind = choice.get("type")
    named = choice.get(kind) if isinstance(kind, str) else None
    if kind == "function" and isinstance(named, dict) and isinstance(named.get("name"), str):
        return {"type": "function", "name": named["name"]}
    if kind == "allowed_tools" and isinstance(named, dict) and isinstance(named.get("tools"), list):
        tools = [_choice_from_chat(tool) if isinstance(tool, dict) else tool for tool in named["tools"]]
        return {"type": "allowed_tools", **others(named, ("tools",)), "tools": tools}
    raise Invalid(f"tool_choice: only functions can be chosen, not {choice!r:.100}")


def _format_from_chat(wanted: Any) -> dict[str, Any]:
    kind = wanted.get("type") if isinstance(wanted, dict) else None
    if kind in ("text", "json_object"):
        return others(wanted, ())
    if kind == "json_schema" and isinstance(wanted.get("json_schema"), dict):
        return {**others(wanted, ("json_schema",)), **others(wanted["json_schema"], ()), "type": "json_schema"}
    raise Invalid(f"response_format: cannot be carried over: {wanted!r:.100}")


# --- params to a Chat request


def chat_from_params(
    params: ResponsesParams,
    *,
    reasoning_field: str | None = "reasoning_content",
    limit_field: str = "max_tokens",
) -> dict[str, Any]:
    """The Chat request that asks for the same.

    Roles are those that every endpoint knows: `developer` and `instructions` become `system`.

    Args:
        reasoning_field: where an assistant message carries its earlier reasoning: the name of a field, `think` for
            `<think>` tags before its text, or None to leave it out.
        limit_field: what the endpoint calls the limit of its answer's tokens.

    Raises:
        Invalid: a field or item that cannot be expressed, by name.
    """
    given = {name: value for name, value in params.dump_without_input().items() if value is not None}
    refuse(given, _RESPONSES_ONLY, "the Chat format")
    if given.get("truncation", "disabled") != "disabled":
        raise Invalid("truncation: a Chat endpoint cannot be told to truncate")
    unknown = [name for name in given.get("include", []) if name not in (LOGPROBS, "reasoning.encrypted_content")]
    if unknown:
        raise Invalid(f"include: a Chat endpoint cannot include {unknown[0]!r}")
    wanted_schema(params)
    messages = messages_from_items(params.items, reasoning_field)
    if params.instructions:
        messages.insert(0, {"role": "system", "content": params.instructions})
    body: dict[str, Any] = {"messages": messages}
    # asking for the likeliest alternatives asks for log-probs, which Chat wants said
    if LOGPROBS in given.get("include", []) or given.get("top_logprobs"):
        body["logprobs"] = True
    if "max_output_tokens" in given:
        body[limit_field] = given.pop("max_output_tokens")
    body |= _reasoning_options(given.pop("reasoning", {}))
    body |= _text_options(given.pop("text", {}))
    body |= _tool_options(given)
    body |= _extra_body(given)
    taken = ("instructions", *_NO_EFFECT_ON_CHAT)
    return body | {name: value for name, value in given.items() if name not in taken}


def _reasoning_options(reasoning: dict[str, Any]) -> dict[str, Any]:
    for name, default in (("mode", "standard"), ("context", "auto")):
        if reasoning.get(name) not in (None, default):
            raise Invalid(f"reasoning.{name}: a Chat endpoint cannot be told {reasoning[name]!r}")
    rest = others(reasoning, ("effort", "summary", "generate_summary", "mode", "context"))
    effort = reasoning.get("effort")
    return ({} if effort is None else {"reasoning_effort": effort}) | ({"reasoning": rest} if rest else {})


def _text_options(text: dict[str, Any]) -> dict[str, Any]:
    unknown = others(text, ("format", "verbosity"))
    if unknown:
        raise Invalid(f"text.{next(iter(unknown))}: there is no place for it in the Chat format")
    options = {} if text.get("verbosity") is None else {"verbosity": text["verbosity"]}
    wanted = text.get("format") or {"type": "text"}
    kind = wanted.get("type")
    if kind == "json_schema":
        return options | {"response_format": {"type": kind, "json_schema": others(wanted, ("type",))}}
    if kind == "json_object":
        return options | {"response_format": others(wanted, ())}
    if kind == "text":
        return options
    raise Invalid(f"text.format: a Chat endpoint does not know {kind!r}")


def _tool_options(given: dict[str, Any]) -> dict[str, Any]:
    tools, choice, parallel = take_tools(given)
    if not tools:  # many endpoints refuse an empty list, and so a choice among none
        return {}
    options: dict[str, Any] = {"tools": [_chat_tool(tool) for tool in tools]}
    if choice is not None:
        options["tool_choice"] = _chat_choice(choice)
    return options if parallel is None else {**options, "parallel_tool_calls": parallel}


def _chat_tool(tool: dict[str, Any]) -> dict[str, Any]:
    if tool.get("type") != "function":
        raise Invalid(f"tools: a Chat endpoint knows only function tools, not {tool.get('type')!r}")
    function = {name: tool[name] for name in _OF_FUNCTION if tool.get(name) is not None}
    if function.get("strict") is False:
        del function["strict"]
    return {"type": "function", "function": function, **others(tool, ("type", *_OF_FUNCTION))}


def _chat_choice(choice: str | dict[str, Any]) -> str | dict[str, Any]:
    if isinstance(choice, str):
        return choice
    kind = choice.get("type")
    if kind == "function":
        return {"type": "function", "function": {"name": choice.get("name")}}
    if kind == "allowed_tools" and isinstance(choice.get("tools"), list):
        tools = [_chat_choice(tool) for tool in choice["tools"] if isinstance(tool, dict)]
        return {"type": kind, kind: {**others(choice, ("type", "tools")), "tools": tools}}
    raise Invalid(f"tool_choice: a Chat endpoint cannot be told to choose {kind!r}")


def _extra_body(given: dict[str, Any]) -> dict[str, Any]:
    metadata = given.get("metadata") or {}
    found: dict[str, Any] = {}
    for name in ("extra_body", "chat_template_kwargs"):
        value = object_in(metadata, name)
        if value is not None:
            found |= value if name == "extra_body" else {name: value}
    if found:
        given["metadata"] = others(metadata, ("extra_body", "chat_template_kwargs"))
        if not given["metadata"]:
            del given["metadata"]
    return found
