"""OpenAI's official client before a model that is served on loopback."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import openai
from gymbox.guard import Guard
from gymbox.http import HttpClient
from gymbox.models import Model
from gymbox.models.server import ModelServer
from gymbox.serving import Listener

TOKEN = "gbx_openai_callers_tests_only"


@asynccontextmanager
async def served(model: Model, http: HttpClient) -> AsyncIterator[openai.AsyncOpenAI]:
    """The client of a server of this model; it tries nothing twice."""
    app = ModelServer(model, http).setup_webserver()
    async with Listener(app, Guard(token=TOKEN, takes_api_key=True), drain=1) as listener:
        async with openai.AsyncOpenAI(base_url=f"{listener.url}/v1", api_key=TOKEN, max_retries=0) as api:
            yield api
