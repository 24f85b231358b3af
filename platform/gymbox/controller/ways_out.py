"""Ways out: what sandboxes reach through their network policies, and the models that some of them may call."""

from __future__ import annotations

from gymbox_sandbox.lifecycle import fingerprint

from gymbox.controller.container import Container
from gymbox.controller.sandbox import Sandbox
from gymbox.controller.tokens import Tokens
from gymbox.network import Traffic, way_out
from gymbox.providers import ModelsAt, SandboxProvider, lead_models, traffic_of


class WaysOut:
    """Those of one controller's sandboxes.

    Args:
        models_url: where models are served for all of them; None: nowhere.
    """

    def __init__(self, provider: SandboxProvider, tokens: Tokens, models_url: str | None) -> None:
        self._provider = provider
        self._tokens = tokens
        self._models_url = models_url

    def models_at(self, container: str) -> ModelsAt | None:
        """Where the model calls from a container of that id go, unless they are led elsewhere, and with which key."""
        return ModelsAt(self._models_url, self._tokens.of_models(container)) if self._models_url else None

    def models_token(self, container: Container) -> str:
        """The fingerprint of that key; `""` where the container's network lets no model calls out."""
        way = way_out(container.environment.manifest.network)
        return fingerprint(self._tokens.of_models(container.id)) if way and way.models else ""

    def traffic(self, sandbox: Sandbox) -> Traffic:
        """What it was let through to and refused; of one that has ended while its provider remembers."""
        return traffic_of(self._provider, sandbox.container.id)

    def lead_models(self, sandbox: Sandbox, url: str, key: str) -> None:
        """Send its model calls to the one model at `url` from now on, where its network lets them out. Sandboxes that
        share a container cannot be told apart by their calls, so these stay with the proxy's models."""
        if sandbox.container.capacity == 1:
            lead_models(self._provider, sandbox.container.id, ModelsAt(url, key, one=True))

    def models_unanswered(self, sandbox: Sandbox) -> int:
        """Its model calls that got no answer, since the last that got one, where they can be told from others'."""
        if sandbox.container.capacity > 1:
            return 0
        return traffic_of(self._provider, sandbox.container.id).models_unanswered
