"""Settings: everything that a proxy is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

from gymbox_sandbox.lifecycle import ID_PATTERN
from pydantic import BaseModel, ConfigDict, Field, HttpUrl, SecretStr, field_validator, model_validator

from gymbox.guard import LOOPBACK_HOSTS

MiB = 1024 * 1024


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Upstream(_Strict):
    """A model or agent server behind the proxy; a plain string is its `url`."""

    url: HttpUrl
    """Base address: `/models/NAME/v1/responses` goes to `{url}/v1/responses`."""
    token: SecretStr | None = None
    """Bearer token that the proxy adds; whoever calls never sees it."""

    @model_validator(mode="before")
    @classmethod
    def _from_url(cls, value: Any) -> Any:
        return {"url": value} if isinstance(value, str) else value

    @property
    def base(self) -> str:
        """The address without a slash at its end."""
        return str(self.url).rstrip("/")


class ProxyLimits(_Strict):
    """What a routing proxy lets through. Sizes are bytes, times are seconds."""

    max_connections: int = Field(8192, ge=1)
    """Connections of clients; one more is closed at once."""
    connections_per_sandbox: int = Field(1024, ge=1)
    """Connections to one sandbox's server; requests beyond wait for one. No more than its listen backlog."""
    header_limit: int = Field(16 * 1024, ge=1024)
    """Longest request line and longest header field; more, or over 128 fields, is answered with 400."""
    sandbox_body_limit: int = Field(4096 * MiB, ge=0)
    """Largest request body for a sandbox (files are uploaded through it)."""
    tools_body_limit: int = Field(4 * MiB, ge=0)
    """Largest request body for a sandbox's tools and its author's own routes."""
    upstream_body_limit: int = Field(64 * MiB, ge=0)
    """Largest request body for a model or an agent."""
    websocket_message_limit: int = Field(64 * MiB, ge=1)
    """Largest WebSocket message, either way; a larger one closes both halves with 1009."""
    websocket_heartbeat: float = Field(60, gt=0)
    """A peer that answers no ping for half of this is gone: both halves are closed."""
    connect_timeout: float = Field(10, gt=0)
    """For a connection to an upstream."""
    idle_timeout: float = Field(86_400, gt=0)
    """Silence of an upstream, before and between its bytes; the longest command of a sandbox may be silent."""
    drain: float = Field(10, ge=0)
    """What requests in flight get when it stops."""


class ProxySettings(ProxyLimits):
    """A routing proxy."""

    host: str = "127.0.0.1"
    """Address of the public listener."""
    port: int = Field(0, ge=0, le=65535)
    """Its port; 0 takes a free one."""
    allowed_hosts: tuple[str, ...] = LOOPBACK_HOSTS
    """Values of the Host header that are answered: `name`, with any port, or `name:port`."""
    allowed_origins: tuple[str, ...] = ()
    """Values of the Origin header that are answered; a request without one comes from no web page."""
    admin_socket: Path | None = None
    """Unix socket (mode 0660) on which the controller pushes routes; whoever may open it may replace them."""
    admin_port: int | None = Field(None, ge=0, le=65535)
    """Or a loopback port for that, with `admin_token`; 0 takes a free one."""
    admin_token: SecretStr | None = None
    """Bearer token that `admin_port` asks for."""
    models: dict[str, Upstream] = Field(default_factory=dict)
    """Model servers by name, reached as `/models/NAME/…`."""
    agents: dict[str, Upstream] = Field(default_factory=dict)
    """Agent servers by name, reached as `/agents/NAME/…`."""
    client_tokens: tuple[str, ...] = ()
    """SHA-256 hex of tokens that may call models and agents, beside the admin token."""

    @field_validator("models", "agents")
    @classmethod
    def _names(cls, value: dict[str, Upstream]) -> dict[str, Upstream]:
        import re

        for name in value:
            if not re.fullmatch(ID_PATTERN, name):
                raise ValueError(f"{name!r} cannot be a name in an address ({ID_PATTERN})")
        return value

    @model_validator(mode="after")
    def _admin(self) -> Self:
        if self.admin_port is not None and self.admin_token is None:
            raise ValueError("admin_port needs admin_token: every local user and sandbox reaches a loopback port")
        return self
