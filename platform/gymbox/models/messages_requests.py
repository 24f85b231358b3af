"""Messages requests: what is asked of a model, between Anthropic's Messages API and the Responses API.

    params_from_messages    a Messages request -> ResponsesParams      (a caller speaks Messages to us)
    messages_from_params    ResponsesParams    -> a Messages request   (we speak Messages to an endpoint)

    | Messages                                  | Responses                                                           |
    |-------------------------------------------|---------------------------------------------------------------------|
    | `system`, a string                        | `instructions`                                                      |
    | `system`, blocks                          | messages of `system` or `developer` that open the history           |
    | `max_tokens`                              | `max_output_tokens`                                                 |
    | `stop_sequences`                          | `stop`                                                              |
    | `metadata.user_id`                        | `user`, `safety_identifier`                                         |
    | a tool's `input_schema`                   | its `parameters`; `strict` false where Messages leaves it out       |
    | a tool of a versioned type (`…_20250305`) | the same; back ends that do not know it refuse it                   |
    | `tool_choice` auto, any, none, tool       | `auto`, `required`, `none`, a function                              |
    | only these tools are offered              | `tool_choice` of `allowed_tools`                                    |
    | `disable_parallel_tool_use`               | not `parallel_tool_calls`                                           |
    | `output_config.effort`, `thinking`        | `reasoning.effort` (disabled: `none`; a budget: its nearest effort) |
    | `thinking.display: summarized`            | `reasoning.summary`                                                 |
    | `output_config.format`                    | `text.format`, its name and description apart                       |
    | `service_tier` auto, standard_only        | `service_tier` auto, default                                        |

How a history becomes messages: see `messages_history` and `messages_blocks`. Fields that neither side names (`top_k`,
`seed`, …) pass through as they are. `metadata.extra_body`, a JSON object as text, is sent as fields of the request.
What has no place on the other side is refused by name (`Invalid`), except what has no effect on an answer and is left
out: marks for caches (`cache_control`, unless they are asked for; `prompt_cache_key`, `prompt_cache_retention`),
`diagnostics`, how an answer is delivered, kept or labelled (`stream`, `store`, `metadata`, `truncation: disabled`),
and limits on tools that run at the provider (`max_tool_calls`).
"""

from __future__ import annotations

import re
from typing import Any, Literal

from gymbox_sandbox.problems import faults
from gymbox_sandbox.responses import ResponsesParams
from pydantic import ValidationError

from gymbox.errors import Invalid
from gymbox.models.chat_messages import others
from gymbox.models.messages_blocks import part_from_block
from gymbox.models.messages_history import items_from_messages, messages_from_items
from gymbox.models.request_fields import object_in, refuse, take_tools
from gymbox.models.structured import wanted_schema

MAX_TOKENS = 8192
"""`max_tokens` of a request that sets no limit, since the API wants one."""
Thinking = Literal["adaptive", "budget"]

_MESSAGES_ONLY = ("container", "fallbacks", "inference_geo", "mcp_servers", "user_profile_id", "workspace_id")
_NOT_OF_MESSAGES = (
    *("background", "conversation", "include", "input", "instructions", "max_output_tokens", "previous_response_id"),
    *("prompt", "reasoning", "stop", "text", "truncation", "parallel_tool_calls", "n"),
)
"""Would be taken for something else where a Messages request is turned into params."""
_RESPONSES_ONLY = ("background", "context_management", "conversation", "previous_response_id", "prompt")
_NO_EFFECT = frozenset(
    [
        *("include", "input", "instructions", "max_tool_calls", "metadata", "prompt_cache_key", "truncation"),
        *("prompt_cache_retention", "safety_identifier", "store", "stream", "stream_options", "user"),
    ]
)
_TIERS = {"auto": "auto", "standard_only": "default"}
_EFFORTS = {"minimal": "low", "low": "low", "medium": "medium", "high": "high", "xhigh": "xhigh", "max": "max"}
_BUDGETS = {"minimal": 1024, "low": 2048, "medium": 8192, "high": 16384, "xhigh": 32768, "max": 32768}
_LEAST_BUDGET = 1024
_VERSIONED = re.compile(r"_20\d{6}$")
_OF_TOOL = ("type", "name", "description", "parameters", "strict")


# --- a Messages request to params


def params_from_messages(body: dict[str, Any], *, cache_control: bool = False) -> ResponsesParams:
    """The Responses params that ask for the same.

    Args:
        cache_control: keep the marks for Anthropic's cache beside what they mark; other endpoints may refuse them.

    Raises:
        Invalid: a field, message or block that cannot be expressed, by name.
    """
    body = {name: value for name, value in body.items() if value is not None}
    refuse(body, _MESSAGES_ONLY, "the Responses format")
    refuse(body, _NOT_OF_MESSAGES, "the Messages format")
    for name in ("cache_control", "diagnostics", "stream"):
        body.pop(name, None)
    if body.pop("speed", "standard") != "standard":
        raise Invalid("speed: only the standard one can be asked for")
    _check_context_management(body.pop("context_management", None))
    items = items_from_messages(body.pop("messages", None))
    system = body.pop("system", None)
    if isinstance(system, str):
        body["instructions"] = system
    elif system is not None:
        items.insert(0, _system_item(system))
    if "max_tokens" in body:
        body["max_output_tokens"] = body.pop("max_tokens")
    if "stop_sequences" in body:
        body["stop"] = body.pop("stop_sequences")
    if "metadata" in body:
        body |= _user(body.pop("metadata"))
    if "service_tier" in body:
        tier = body.pop("service_tier")
        if not isinstance(tier, str) or tier not in _TIERS:
            raise Invalid(f"service_tier: {tier!r:.60} cannot be carried over, only {' and '.join(_TIERS)}")
        body["service_tier"] = _TIERS[tier]
    body |= _output_options(body.pop("output_config", {}), body.pop("thinking", None))
    if "tools" in body:
        if not isinstance(body["tools"], list):
            raise Invalid(f"tools: a list is needed, not {type(body['tools']).__name__}")
        body["tools"] = [_tool_from_messages(tool) for tool in body["tools"]]
    body |= _choice_from_messages(body.pop("tool_choice", None))
    if not cache_control:
        _unmark(items, body.get("tools", []))
    try:
        return ResponsesParams.model_validate({**body, "input": items})
    except ValidationError as error:
        raise Invalid(faults(error)) from error


def _check_context_management(given: Any) -> None:
    """Let it pass where it asks for nothing but what happens anyway: earlier thinking is kept."""
    edits = given.get("edits", []) if isinstance(given, dict) else [given] if given else []
    for edit in edits if isinstance(edits, list) else [edits]:
        kind = edit.get("type") if isinstance(edit, dict) else edit
        if not (str(kind).startswith("clear_thinking") and isinstance(edit, dict) and edit.get("keep") == "all"):
            raise Invalid(f"context_management: {kind!r:.60} cannot be carried over")


def _system_item(system: Any) -> dict[str, Any]:
    if not isinstance(system, list):
        raise Invalid(f"system: a string or a list of text blocks is needed, not {type(system).__name__}")
    try:
        parts = [part_from_block(block) for block in system]
    except Invalid as error:
        raise Invalid(f"system: {error.detail}") from error
    if any(part["type"] != "input_text" for part in parts):
        raise Invalid("system: it can only hold text blocks")
    return {"type": "message", "role": "system", "content": parts}


def _user(metadata: Any) -> dict[str, Any]:
    if not isinstance(metadata, dict):
        raise Invalid(f"metadata: an object is needed, not {type(metadata).__name__}")
    unknown = others(metadata, ("user_id",))
    if unknown:
        raise Invalid(f"metadata.{next(iter(unknown))}: the Messages format knows only user_id")
    return {} if metadata.get("user_id") is None else {"user": metadata["user_id"]}


def _output_options(config: Any, thinking: Any) -> dict[str, Any]:
    if not isinstance(config, dict):
        raise Invalid(f"output_config: an object is needed, not {type(config).__name__}")
    unknown = others(config, ("effort", "format"))
    if unknown:
        raise Invalid(f"output_config.{next(iter(unknown))}: there is no place for it in the Responses format")
    reasoning = {"effort": config["effort"]} if config.get("effort") is not None else {}
    reasoning = _reasoning_from_thinking(thinking) | reasoning if thinking is not None else reasoning
    options: dict[str, Any] = {"reasoning": reasoning} if reasoning else {}
    wanted = config.get("format")
    if wanted is None:
        return options
    if not isinstance(wanted, dict) or wanted.get("type") != "json_schema":
        raise Invalid(f"output_config.format: cannot be carried over: {wanted!r:.100}")
    # the Responses API wants a name for each schema
    return {**options, "text": {"format": {"name": "answer", "strict": True, **others(wanted, ())}}}


def _reasoning_from_thinking(thinking: Any) -> dict[str, Any]:
    kind = thinking.get("type") if isinstance(thinking, dict) else None
    if kind == "disabled":
        return {"effort": "none"}
    if kind not in ("enabled", "adaptive"):
        raise Invalid(f"thinking: cannot be carried over: {thinking!r:.100}")
    shown = {"summary": "auto"} if thinking.get("display") == "summarized" else {}
    if kind == "adaptive":
        return shown
    budget = thinking.get("budget_tokens")
    if not isinstance(budget, int):
        raise Invalid(f"thinking.budget_tokens: a number is needed, not {budget!r:.60}")
    # the middle between two budgets parts their efforts
    return {**shown, "effort": "low" if budget < 5120 else "medium" if budget < 12288 else "high"}


def _tool_from_messages(tool: Any) -> dict[str, Any]:
    kind = tool.get("type") or "custom" if isinstance(tool, dict) else None
    if kind != "custom":
        if isinstance(kind, str) and _VERSIONED.search(kind):
            return others(tool, ())
        raise Invalid(f"tools: cannot be carried over: {tool!r:.100}")
    if not isinstance(tool.get("name"), str) or not isinstance(tool.get("input_schema"), dict):
        raise Invalid("tools: a tool needs its name and its input_schema")
    beside = others(tool, ("type", "input_schema"))
    return {"strict": False, **beside, "type": "function", "parameters": tool["input_schema"]}


def _choice_from_messages(choice: Any) -> dict[str, Any]:
    if choice is None:
        return {}
    kind = choice.get("type") if isinstance(choice, dict) else choice
    found: Any = {"auto": "auto", "any": "required", "none": "none"}.get(kind) if isinstance(kind, str) else None
    if kind == "tool" and isinstance(choice.get("name"), str):
        found = {"type": "function", "name": choice["name"]}
    if found is None or not isinstance(choice, dict):
        raise Invalid(f"tool_choice: cannot be carried over: {choice!r:.100}")
    single = choice.get("disable_parallel_tool_use")
    return {"tool_choice": found} | ({} if single is None else {"parallel_tool_calls": not single})


def _unmark(items: list[dict[str, Any]], tools: list[dict[str, Any]]) -> None:
    for item in [*items, *tools]:
        item.pop("cache_control", None)
        for name in ("content", "output"):
            if isinstance(item.get(name), list):
                for part in item[name]:
                    if isinstance(part, dict):
                        part.pop("cache_control", None)


# --- params to a Messages request


def messages_from_params(
    params: ResponsesParams, *, max_tokens: int = MAX_TOKENS, thinking: Thinking = "adaptive", foreign: bool = False
) -> dict[str, Any]:
    """The Messages request that asks for the same.

    Args:
        max_tokens: the limit where the params set none.
        thinking: how `reasoning.effort` is asked for: `adaptive` thinking with `output_config.effort`, or a `budget`
            of tokens, as older models want it.
        foreign: send back reasoning that Anthropic did not sign, too.

    Raises:
        Invalid: a field or item that cannot be expressed, by name.
    """
    given = {name: value for name, value in params.dump_without_input().items() if value is not None}
    refuse(given, (*_RESPONSES_ONLY, "top_logprobs"), "the Messages format")
    if given.get("truncation", "disabled") != "disabled":
        raise Invalid("truncation: a Messages endpoint cannot be told to truncate")
    unknown = [name for name in given.get("include", []) if name != "reasoning.encrypted_content"]
    if unknown:
        raise Invalid(f"include: a Messages endpoint cannot include {unknown[0]!r}")
    system, messages = messages_from_items(params.items, foreign=foreign)
    limit = given.pop("max_output_tokens", max_tokens)
    body: dict[str, Any] = {"messages": messages, "max_tokens": limit}
    instructions = params.instructions if (params.instructions or "").strip() else None
    if system:
        body["system"] = [{"type": "text", "text": instructions}, *system] if instructions else system
    elif instructions:
        body["system"] = instructions
    if "stop" in given:
        stop = given.pop("stop")
        body["stop_sequences"] = [stop] if isinstance(stop, str) else stop
    metadata = given.get("metadata") or {}
    user = given.get("user") or given.get("safety_identifier") or metadata.get("user_id")
    if user:
        body["metadata"] = {"user_id": user}
    if "service_tier" in given:
        body["service_tier"] = _tier(given.pop("service_tier"))
    body |= _thinking_options(given.pop("reasoning", {}), thinking, limit)
    wanted = _format(params, given.pop("text", {}))
    if wanted:
        body["output_config"] = {**body.get("output_config", {}), "format": wanted}
    body |= _tool_options(given)
    # what is given in the API's own words wins
    config = given.pop("output_config", None)
    if isinstance(config, dict):
        body["output_config"] = {**body.get("output_config", {}), **config}
    return body | others(given, _NO_EFFECT) | (object_in(metadata, "extra_body") or {})


def _tier(tier: Any) -> str:
    found = next((name for name, other in _TIERS.items() if other == tier), None)
    if found is None:
        raise Invalid(f"service_tier: a Messages endpoint cannot be told {tier!r:.60}")
    return found


def _thinking_options(reasoning: dict[str, Any], thinking: Thinking, limit: int) -> dict[str, Any]:
    for name, default in (("mode", "standard"), ("context", "auto")):
        if reasoning.get(name) not in (None, default):
            raise Invalid(f"reasoning.{name}: a Messages endpoint cannot be told {reasoning[name]!r:.60}")
    unknown = others(reasoning, ("effort", "summary", "generate_summary", "mode", "context"))
    if unknown:
        raise Invalid(f"reasoning.{next(iter(unknown))}: there is no place for it in the Messages format")
    effort = reasoning.get("effort")
    if effort is None:
        return {}
    if effort == "none":
        return {"thinking": {"type": "disabled"}}
    if not isinstance(effort, str) or effort not in _EFFORTS:
        raise Invalid(f"reasoning.effort: a Messages endpoint does not know {effort!r:.60}")
    shown = {"display": "summarized"} if reasoning.get("summary") or reasoning.get("generate_summary") else {}
    if thinking == "adaptive":
        return {"thinking": {"type": "adaptive", **shown}, "output_config": {"effort": _EFFORTS[effort]}}
    # thoughts count towards the limit, so they may take half of it
    budget = min(_BUDGETS[effort], max(_LEAST_BUDGET, limit // 2))
    if budget >= limit:
        raise Invalid(f"max_output_tokens: thinking takes {_LEAST_BUDGET} of them, so {limit} are too few")
    return {"thinking": {"type": "enabled", "budget_tokens": budget, **shown}}


def _format(params: ResponsesParams, text: dict[str, Any]) -> dict[str, Any] | None:
    for name, value in others(text, ("format",)).items():
        if (name, value) != ("verbosity", "medium"):
            raise Invalid(f"text.{name}: there is no place for it in the Messages format")
    wanted = text.get("format") or {"type": "text"}
    wanted_schema(params)
    if wanted.get("type") == "text":
        return None
    if wanted.get("type") == "json_schema" and isinstance(wanted.get("schema"), dict):
        return {"type": "json_schema", "schema": wanted["schema"]}
    raise Invalid(f"text.format: a Messages endpoint enforces only a schema, not {wanted.get('type')!r:.60}")


def _tool_options(given: dict[str, Any]) -> dict[str, Any]:
    tools, choice, parallel = take_tools(given)
    if not tools:
        return {}
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        tools, choice = _allowed(tools, choice)
    options: dict[str, Any] = {"tools": [_messages_tool(tool) for tool in tools]}
    found = _messages_choice(choice) if choice is not None else {}
    if found.get("type") != "none" and (found and parallel is not None or parallel is False):
        found = {"type": "auto", **found, "disable_parallel_tool_use": not parallel}
    return options | ({"tool_choice": found} if found else {})


def _allowed(tools: list[dict[str, Any]], choice: dict[str, Any]) -> tuple[list[dict[str, Any]], str]:
    listed = choice.get("tools")
    named = [tool.get("name") for tool in listed if isinstance(tool, dict)] if isinstance(listed, list) else []
    kept = [tool for tool in tools if tool.get("name") in named]
    if not kept or choice.get("mode", "auto") not in ("auto", "required"):
        raise Invalid(f"tool_choice: it allows none of the tools: {choice!r:.100}")
    return kept, choice.get("mode", "auto")


def _messages_tool(tool: dict[str, Any]) -> dict[str, Any]:
    kind = tool.get("type")
    if isinstance(kind, str) and _VERSIONED.search(kind):
        return others(tool, ())
    if kind != "function" or not isinstance(tool.get("name"), str):
        raise Invalid(f"tools: a Messages endpoint knows function tools and its own, not {kind!r:.60}")
    schema = tool.get("parameters") or {}
    if not isinstance(schema, dict):
        raise Invalid(f"tools: the parameters of {tool['name']!r} must be an object, not {type(schema).__name__}")
    found = {"name": tool["name"], "input_schema": {"type": "object", **schema}}
    for name in ("description", "strict"):
        if tool.get(name):
            found[name] = tool[name]
    return found | others(tool, _OF_TOOL)


def _messages_choice(choice: Any) -> dict[str, Any]:
    kinds = {"auto": "auto", "required": "any", "none": "none"}
    if isinstance(choice, str) and choice in kinds:
        return {"type": kinds[choice]}
    if isinstance(choice, dict) and choice.get("type") == "function" and isinstance(choice.get("name"), str):
        return {"type": "tool", "name": choice["name"]}
    raise Invalid(f"tool_choice: a Messages endpoint cannot be told to choose {choice!r:.100}")
