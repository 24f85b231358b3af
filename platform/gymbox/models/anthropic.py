"""Anthropic: models behind the Messages API, Anthropic's own or any server's that answers like it."""

from __future__ import annotations

from typing import Any

from gymbox_sandbox.responses import Response, ResponsesParams
from pydantic import Field

from gymbox.errors import Invalid
from gymbox.models import Call
from gymbox.models.endpoint import BaseUrl, Endpoint
from gymbox.models.messages_answers import response_from_messages
from gymbox.models.messages_requests import MAX_TOKENS, Thinking, messages_from_params
from gymbox.models.structured import check_structured

_COUNTED = ("messages", "system", "tools", "tool_choice", "thinking", "output_config", "model")


class AnthropicModel(Endpoint):
    """A model behind `POST {base_url}/v1/messages`.

    Requests in the Messages format are sent on as they are, with this model's name and defaults; others are converted
    (see `messages_requests`). Fields that the Responses API does not name (`top_k`, …) are sent as they are, too.
    Source: Anthropic's Messages API reference.
    """

    base_url: BaseUrl | None = "https://api.anthropic.com"
    """Address of the API; the `/v1` at its end may be left out."""
    version: str = "2023-06-01"
    """Sent as `anthropic-version`."""
    beta: list[str] = Field(default_factory=list)
    """Names of features in trial, sent as `anthropic-beta`."""
    max_tokens: int = Field(MAX_TOKENS, ge=1)
    """The limit of an answer's tokens where a request sets none, since the API wants one. Thinking counts, too."""
    thinking: Thinking = "adaptive"
    """How `reasoning.effort` is asked for: `adaptive` thinking and `output_config.effort`, or a `budget` of tokens, as
    models before Claude 4.6 want it. A request without an effort gets what the model does by itself."""
    unsigned_thinking: bool = False
    """Send earlier reasoning back also where Anthropic did not sign it. Anthropic itself refuses that; other servers
    with this API want it."""

    async def responses(self, params: ResponsesParams, call: Call) -> Response:
        merged = params.with_defaults(self.params)

        def read(answer: Any) -> Response:
            response = response_from_messages(answer)
            check_structured(merged, response)
            return response

        return await self.post(call.http, "/v1/messages", self._body(merged), read, call=call)

    async def messages(self, body: dict[str, Any], call: Call) -> dict[str, Any]:
        """Send a Messages request on; the answer comes back as it is.

        Raises:
            ModelFailure: as `responses`.
        """
        wanted = _wanted(body)

        def read(answer: Any) -> dict[str, Any]:
            check_structured(wanted, response_from_messages(answer))
            found: dict[str, Any] = answer
            return found

        return await self.post(call.http, "/v1/messages", self._given(body), read, call=call)

    async def count_tokens(self, body: dict[str, Any], call: Call) -> int:
        """The input tokens of a Messages request, as the endpoint counts them.

        Raises:
            ModelFailure: as `responses`.
        """
        given = {name: value for name, value in self._given(body).items() if name in _COUNTED}

        def read(answer: Any) -> int:
            count = answer.get("input_tokens") if isinstance(answer, dict) else None
            if not isinstance(count, int):
                raise Invalid(f"a count of tokens has input_tokens, this is {answer!r:.200}")
            return count

        return await self.post(call.http, "/v1/messages/count_tokens", given, read, call=call)

    def _body(self, params: ResponsesParams) -> dict[str, Any]:
        options: dict[str, Any] = {"thinking": self.thinking, "foreign": self.unsigned_thinking}
        return messages_from_params(params, max_tokens=self.max_tokens, **options) | {"model": self.name}

    def _given(self, body: dict[str, Any]) -> dict[str, Any]:
        """A Messages request with this model's name and defaults."""
        defaults = {"max_tokens": self.max_tokens}
        if self.params:
            defaults = self._body(ResponsesParams.model_validate({"input": "?", **self.params}))
        given = {name: value for name, value in body.items() if value is not None and name != "stream"}
        return {**defaults, **given, "model": self.name}

    def _url(self, base_url: str, path: str) -> str:
        return f"{base_url.removesuffix('/v1')}{path}"

    def _key_headers(self, key: str) -> dict[str, str]:
        return {"x-api-key": key}

    def _headers(self) -> dict[str, str]:
        beta = {"anthropic-beta": ",".join(self.beta)} if self.beta else {}
        return {"anthropic-version": self.version, **beta} | super()._headers()


def _wanted(body: dict[str, Any]) -> ResponsesParams:
    """What `check_structured` looks at, of a Messages request."""
    config = body.get("output_config")
    wanted = config.get("format") if isinstance(config, dict) else None
    if not isinstance(wanted, dict) or not isinstance(wanted.get("schema"), dict):
        return ResponsesParams()
    return ResponsesParams.model_validate({"text": {"format": {"type": "json_schema", "schema": wanted["schema"]}}})
