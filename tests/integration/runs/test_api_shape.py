"""What the OpenAPI document of a controller says of `/v1/runs`, tried by Schemathesis."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import requests
import schemathesis
from gymbox.http import HttpClient
from hypothesis import HealthCheck, given, settings

SECONDS = 20
bounded = settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck), database=None)


async def test_what_the_document_allows_is_answered_as_it_says(server: Any) -> None:
    def fuzz() -> set[str]:
        document = requests.get(f"{server.url}/openapi.json", timeout=SECONDS).json()
        tried: set[str] = set()
        for found in schemathesis.openapi.from_dict(document).get_all_operations():
            operation = found.ok()
            if not operation.path.startswith("/v1/runs") and operation.path != "/queue":
                continue

            @bounded
            @given(case=operation.as_strategy())
            def each(case: Any) -> None:
                answer = case.call(base_url=server.url, headers=server.headers, timeout=SECONDS)
                told = document["paths"][case.operation.path][case.method.lower()]["responses"]
                # 400 and 405 are the framework's, for what is no HTTP or no path at all
                assert str(answer.status_code) in {*told, "400", "404", "405"}, (answer.status_code, case)
                if answer.status_code >= 400:
                    assert answer.headers["content-type"] == ["application/problem+json"]

            each()
            tried.add(f"{operation.method.upper()} {operation.path}")
        return tried

    assert len(await asyncio.to_thread(fuzz)) == 10


async def test_the_token_is_needed_everywhere(server: Any, http: HttpClient) -> None:
    for method, path in (
        ("GET", "/v1/runs"),
        ("POST", "/v1/runs"),
        ("GET", "/v1/runs/r"),
        ("GET", "/v1/runs/r/events"),
        ("GET", "/v1/runs/r/results"),
        ("POST", "/v1/runs/r/cancel"),
        ("DELETE", "/v1/runs/r"),
        ("GET", "/queue"),
    ):
        answer = await http.request(method, server.url + path, headers={"Authorization": "Bearer other"})
        assert answer.status == 401, path


@pytest.mark.parametrize("id", ["..", "%2e%2e", "a%2Fb", "a b", "x" * 200])
async def test_no_id_leads_out_of_the_folder_of_runs(server: Any, http: HttpClient, id: str) -> None:
    outside = server.runs.folder.parent / "precious.json"
    outside.write_text("{}")
    for method, path in (("DELETE", ""), ("GET", ""), ("GET", "/results"), ("POST", "/cancel")):
        answer = await http.request(method, f"{server.url}/v1/runs/{id}{path}", headers=server.headers)
        assert answer.status in (404, 405), (method, path)
    created = await http.request(
        "POST", f"{server.url}/v1/runs", headers=server.headers, json={"id": id, "overrides": []}
    )
    assert created.status == 422
    assert outside.exists()
