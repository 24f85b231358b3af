"""Chat: models behind any Chat Completions endpoint (vLLM, SGLang, llama.cpp, …), converted both ways."""

from __future__ import annotations

from typing import Any, Literal

from gymbox_sandbox.responses import Response, ResponsesParams

from gymbox.models import Call
from gymbox.models.chat_answers import response_from_chat
from gymbox.models.chat_requests import chat_from_params
from gymbox.models.endpoint import Endpoint
from gymbox.models.structured import check_structured
from gymbox.models.token_ids import echo_token_ids, with_prefix_mark


class ChatModel(Endpoint):
    """A model behind `POST {base_url}/chat/completions`.

    Fields of the request that the Responses API does not name (`top_k`, `seed`, `chat_template_kwargs`, …) are sent as
    they are. What a Chat request cannot say is refused by name before anything is sent.
    """

    reasoning_field: Literal["reasoning_content", "reasoning", "think"] | None = "reasoning_content"
    """Where earlier reasoning goes back to the model: a field of the assistant's message, `<think>` tags before its
    text, or (null) nowhere. In answers all of them are understood."""
    token_ids: bool = False
    """Ask for the sampled token ids and their log-probs (`return_token_ids` of vLLM and SGLang) and keep them for
    training, on the last output item of each answer. An answer without them, or with ids that conflict, is no usable
    answer; one whose prompt does not begin with what was sampled before is marked `mask_sample` with the reason, and
    so is the rollout: do not train across it."""
    token_echo: bool = True
    """With `token_ids`: send the ids of the last sampled turn back on its message, so that a server which goes on from
    them (NeMo RL's, say) keeps the prefix exact; others ignore the fields."""

    async def responses(self, params: ResponsesParams, call: Call) -> Response:
        merged = ResponsesParams.model_validate({**self.params, **_given(params)})
        body = chat_from_params(merged, reasoning_field=self.reasoning_field) | {"model": self.name}
        if self.token_ids:
            body |= {"logprobs": True, "return_token_ids": True}
            if self.token_echo:
                body["messages"] = echo_token_ids(body["messages"], merged.items)

        def read(answer: Any) -> Response:
            response = response_from_chat(answer, max_output_tokens=merged.max_output_tokens, token_ids=self.token_ids)
            check_structured(merged, response)
            return with_prefix_mark(merged.items, response)

        return await self.post(call.http, "/chat/completions", body, read, call=call)


def _given(params: ResponsesParams) -> dict[str, Any]:
    return {name: value for name, value in params.dump().items() if value is not None}
