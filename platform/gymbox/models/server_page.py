"""Server page: what a model server's OpenAPI document tells of the routes that read their requests themselves."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

_TEXT, _FLAG, _OBJECTS = {"type": "string"}, {"type": "boolean"}, {"type": "array", "items": {"type": "object"}}
_SHARED: dict[str, Any] = {"model": _TEXT, "stream": _FLAG, "temperature": {"type": "number"}, "tools": _OBJECTS}
_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type"],
            "properties": {"message": _TEXT, "type": _TEXT, "rollout_kind": _TEXT},
        }
    },
}
_REQUESTS: dict[str, dict[str, Any]] = {
    "/v1/responses": {
        "description": "A request of the OpenAI Responses API. Fields that are not named here pass through.",
        "properties": {**_SHARED, "input": {"anyOf": [_TEXT, _OBJECTS]}, "instructions": _TEXT},
    },
    "/v1/chat/completions": {
        "description": "A request of the OpenAI Chat Completions API.",
        "required": ["messages"],
        "properties": {**_SHARED, "messages": {**_OBJECTS, "minItems": 1}},
    },
    "/v1/messages": {
        "description": "A request of the Anthropic Messages API.",
        "required": ["messages"],
        "properties": {**_SHARED, "messages": {**_OBJECTS, "minItems": 1}, "max_tokens": {"type": "integer"}},
    },
    "/v1/messages/count_tokens": {
        "description": "A request of the Anthropic Messages API, of which only the tokens are counted.",
        "required": ["messages"],
        "properties": {"model": _TEXT, "messages": {**_OBJECTS, "minItems": 1}, "tools": _OBJECTS},
    },
}
_FAILURES = {
    "403": "The Host or Origin is not on the list.",
    "404": "There is no such model.",
    "413": "The body is too large.",
    "422": "The request is wrong, or its model refuses it.",
    "429": "The model's limit of requests.",
    "502": "The model refuses this server's key, or gave no usable answer.",
    "503": "The model cannot be reached.",
    "504": "The model was too slow.",
}


def describe(app: FastAPI) -> None:
    """Have the document of `app` tell of the requests, streams and failures of its model routes."""
    plain = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            _tell(plain())
        return plain()

    app.openapi = openapi  # type: ignore[method-assign]


def _tell(document: dict[str, Any]) -> None:
    document["components"]["schemas"]["ModelError"] = _ERROR
    failed = {"application/json": {"schema": {"$ref": "#/components/schemas/ModelError"}}}
    for path, operations in document["paths"].items():
        if not path.startswith("/v1/"):
            continue
        for operation in operations.values():
            found = operation["responses"]
            for status, text in _FAILURES.items():
                if path in _REQUESTS or status == "404":
                    found.setdefault(status, {"description": text, "content": {}})
            for status, told in found.items():
                if status >= "400":
                    told["content"] = {**told.get("content", {}), **failed}
        if path in _REQUESTS:
            schema = {"type": "object", **_REQUESTS[path]}
            content = {"application/json": {"schema": schema}}
            operations["post"]["requestBody"] = {"required": True, "content": content}
            answer: dict[str, Any] = {"application/json": {"schema": {"type": "object"}}}
            if "stream" in schema["properties"]:
                answer["text/event-stream"] = {"schema": {"type": "string"}}
            operations["post"]["responses"]["200"] = {"description": "The answer.", "content": answer}
