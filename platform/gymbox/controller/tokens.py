"""Tokens: the capabilities of one sandbox, derived from the controller's key and stored nowhere."""

from __future__ import annotations

import base64
import hmac

from gymbox_sandbox.lifecycle import SandboxTokens


class Tokens:
    """Mints the tokens of sandboxes. The same key gives the same tokens, so they outlive the controller."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def of(self, sandbox: str) -> SandboxTokens:
        """`tools` may call tools; `control` may do everything to this one sandbox."""
        return SandboxTokens(tools=self._mint("tools", sandbox), control=self._mint("control", sandbox))

    def of_models(self, container: str) -> str:
        """What lets model calls from this container, and so from every sandbox on it, to the proxy's models."""
        return self._mint("models", container)

    def _mint(self, scope: str, sandbox: str) -> str:
        mac = hmac.digest(self._key, f"{scope}:{sandbox}".encode(), "sha256")
        return "gbx_sbx_" + base64.urlsafe_b64encode(mac).decode().rstrip("=")
