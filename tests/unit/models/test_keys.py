"""A vendor's own API is not asked without a key; any other server may do without."""

from __future__ import annotations

import pytest
from gymbox.errors import ConfigError
from gymbox.http import HttpClient
from gymbox.models import Model
from gymbox.models.anthropic import AnthropicModel
from gymbox.models.azure import AzureModel
from gymbox.models.metered import MeteredModel
from gymbox.models.openai import OpenAIModel
from gymbox.models.replicas import Replica
from gymbox.runs.readiness import until_ready
from pydantic import SecretStr

OWN = "https://api.openai.com/v1"
KEY = SecretStr("sk-mine")


@pytest.mark.parametrize(
    ("model", "variable"),
    [
        (OpenAIModel(name="m"), "OPENAI_API_KEY"),
        (OpenAIModel(name="m", api_key=SecretStr(" ")), "OPENAI_API_KEY"),
        (OpenAIModel(name="m", replicas=[Replica(url=OWN, api_key=KEY), Replica(url=OWN)]), "OPENAI_API_KEY"),
        (AnthropicModel(name="m"), "ANTHROPIC_API_KEY"),
        (AnthropicModel(name="m", base_url="https://api.anthropic.com/v1"), "ANTHROPIC_API_KEY"),
        (MeteredModel.before(OpenAIModel(name="m")), "OPENAI_API_KEY"),
    ],
)
async def test_a_vendors_own_api_is_refused_without_a_key_whatever_the_time_to_wait(
    model: Model, variable: str
) -> None:
    async with HttpClient() as http:
        with pytest.raises(ConfigError, match=f"wants a key, and there is none: set {variable}, or"):
            await until_ready([None, model], http, 0)


@pytest.mark.parametrize(
    "model",
    [
        OpenAIModel(name="m", api_key=KEY),
        OpenAIModel(name="m", headers={"Authorization": SecretStr("Bearer x")}),
        OpenAIModel(name="m", base_url="http://127.0.0.1:8000/v1"),
        OpenAIModel(name="m", base_url="https://api.openai.com.example.org/v1"),
        OpenAIModel(name="m", replicas=[Replica(url=OWN, api_key=KEY)]),
        AnthropicModel(name="m", base_url="http://127.0.0.1:8000"),
        AnthropicModel(name="m", headers={"x-api-key": SecretStr("x")}),
        AzureModel(name="m", base_url="https://mine.openai.azure.com"),
    ],
)
def test_with_a_key_or_elsewhere_there_is_nothing_to_refuse(model: Model) -> None:
    model.check()
