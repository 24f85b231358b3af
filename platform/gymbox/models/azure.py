"""Azure: models that Azure OpenAI serves, by its v1 API or by deployment and api-version."""

from __future__ import annotations

from urllib.parse import quote, urlsplit

from pydantic import Field, SecretStr

from gymbox.models.chat import ChatModel
from gymbox.models.endpoint import BaseUrl, Endpoint
from gymbox.models.openai import OpenAIModel


class Azure(Endpoint):
    """What both APIs share; `name` is the deployment's name, which requests give as their model.

    Source: Azure OpenAI in Microsoft Foundry Models, v1 API and data plane inference reference.
    """

    base_url: BaseUrl | None = None
    """The resource's address: `https://NAME.openai.azure.com`. What follows it is added, unless it has `/openai`."""
    api_key: SecretStr | None = None
    """One of the resource's keys, sent as `api-key`."""
    token: SecretStr | None = None
    """A token of Microsoft Entra ID, sent as bearer token in the place of a key."""
    api_version: str | None = Field(None, pattern=r"^[A-Za-z0-9._-]+$")
    """Such as `2024-10-21`: asks by deployment and api-version. Default: the v1 API, which needs none."""

    def _url(self, base_url: str, path: str) -> str:
        version = f"?api-version={self.api_version}" if self.api_version else ""
        if "/openai" not in urlsplit(base_url).path:
            base_url += "/openai" if self.api_version else "/openai/v1"
            if self.api_version and path not in ("/responses", self._models_path):
                # only Responses requests name their deployment in the body alone, and lists are of the resource
                base_url += f"/deployments/{quote(self.name, safe='')}"
        return f"{base_url}{path}{version}"

    def _key_headers(self, key: str) -> dict[str, str]:
        return {} if self.token else {"api-key": key}

    def _headers(self) -> dict[str, str]:
        token = {"Authorization": f"Bearer {self.token.get_secret_value().strip()}"} if self.token else {}
        return token | super()._headers()

    def _secrets(self) -> list[SecretStr | None]:
        return [*super()._secrets(), self.token]


class AzureModel(Azure, OpenAIModel):
    """A model that Azure OpenAI serves by the Responses API."""


class AzureChatModel(Azure, ChatModel):
    """A model that Azure OpenAI serves by Chat Completions."""
