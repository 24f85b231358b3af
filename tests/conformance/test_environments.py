"""What every environment in environments/ must hold, tried in real sandboxes of every provider."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gymbox.agents.tool_loop import ToolLoop
from gymbox.checks import Checks
from gymbox.dataset import open_datasets
from gymbox.embedded import EmbeddedController
from gymbox.environment import Catalog, Environment
from gymbox.http import HttpClient
from gymbox.models import Call
from gymbox.models.scripted import ScriptedModel
from gymbox.rollout import run_rollout
from gymbox_sandbox.responses import Response, ResponsesParams
from pydantic import PrivateAttr

CATALOG = Catalog([Path(__file__).resolve().parents[2] / "environments"])
CONTAINERS = 3
"""Rows that are tried in containers, which cost a second of CPU each."""
CANARY = "CANARY-c0ffee"


@pytest.fixture(params=CATALOG.names())
def environment(request: pytest.FixtureRequest, provider: Any) -> Environment:
    environment = CATALOG[request.param]
    if environment.manifest.services and provider.name == "process":
        pytest.skip("services need containers")
    return environment


async def test_every_check_passes(
    environment: Environment, controller: EmbeddedController, http: HttpClient, provider: Any
) -> None:
    [dataset] = open_datasets([environment])
    rows = [dataset[index] for index in range(len(dataset) if provider.name == "process" else CONTAINERS)]
    findings = [finding async for finding in Checks(environment, rows, controller, http).run()]
    assert len(findings) == (5 if environment.manifest.reverify == "no" else 6)
    assert not [(finding.check, finding.faults) for finding in findings if not finding.passed]
    dataset.close()


class WatchedModel(ScriptedModel):
    """Keeps what it was asked."""

    _asked: list[str] = PrivateAttr(default_factory=list)

    async def responses(self, params: ResponsesParams, call: Call) -> Response:
        self._asked.append(json.dumps(params.dump()))
        return await super().responses(params, call)


async def test_hidden_data_reaches_neither_model_nor_tools(
    environment: Environment, controller: EmbeddedController, http: HttpClient
) -> None:
    row = json.loads(environment.dataset.read_bytes().split(b"\n")[0])
    hidden = ["verifier_metadata", *environment.manifest.hidden_fields]
    marked = row | {name: {"canary": CANARY} for name in hidden}
    marked["gold_replies"] = [
        *row["gold_replies"],
        [{"type": "message", "role": "assistant", "content": CANARY}],  # never said: the task is over before
    ]
    model = WatchedModel()

    result = await run_rollout(marked, environment, ToolLoop(), model, controller, http, "canary")

    assert model._asked and CANARY not in "".join(model._asked)
    assert result.response is not None and CANARY not in json.dumps(result.response.dump())
