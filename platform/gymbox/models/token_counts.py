"""Token counts: how many tokens a request has, told by the server that will read it: it alone knows its template."""

from __future__ import annotations

from typing import Any

from gymbox.errors import ErrorKind, Invalid, ModelFailure
from gymbox.models import Call
from gymbox.models.endpoint import Endpoint

CHAT_ROUTES = {"/../tokenize": "count", "/chat/completions/input_tokens": "input_tokens"}
"""Where servers of the Chat format count, from their API's address, and how they call the count: vLLM, llama.cpp."""
RESPONSES_ROUTES = {"/responses/input_tokens": "input_tokens"}
"""Where servers of the Responses format do: OpenAI, llama.cpp."""
_COUNTED = (
    *("conversation", "input", "instructions", "model", "parallel_tool_calls", "previous_response_id", "reasoning"),
    *("text", "tool_choice", "tools", "truncation"),
)
"""Of a Responses request, what OpenAI counts; it refuses the rest."""


async def count_of_chat(endpoint: Endpoint, body: dict[str, Any], call: Call) -> int:
    """The tokens of this Chat request's prompt, its template included.

    Raises:
        Invalid: the endpoint has no route that counts, by name.
        ModelFailure: it could not be asked.
    """
    return await _count(endpoint, CHAT_ROUTES, body, call)


async def count_of_responses(endpoint: Endpoint, body: dict[str, Any], call: Call) -> int:
    """The tokens of this Responses request's prompt.

    Raises:
        Invalid, ModelFailure: as `count_of_chat`.
    """
    return await _count(endpoint, RESPONSES_ROUTES, {name: body[name] for name in _COUNTED if name in body}, call)


async def _count(endpoint: Endpoint, routes: dict[str, str], body: dict[str, Any], call: Call) -> int:
    for path, name in routes.items():

        def read(answer: Any, name: str = name) -> int | None:
            # llama.cpp's /tokenize knows no messages, and answers with no tokens
            count = answer.get(name) if isinstance(answer, dict) else None
            return count if isinstance(count, int) else None

        try:
            count = await endpoint.post(call.http, path, body, read, call=call)
        except ModelFailure as failure:
            if failure.rollout_kind is not ErrorKind.MODEL_REFUSED_REQUEST:
                raise
            count = None
        if count is not None:
            return count
    raise Invalid(f"count_tokens: the back end of model {endpoint.name!r} cannot count a request's tokens")
