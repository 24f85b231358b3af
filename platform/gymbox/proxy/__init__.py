"""Proxy: the one address through which agents, models and tests reach sandboxes and model servers.

It holds a table of routes, which the controller pushes, and no secret, no engine socket and no other state: it keeps
serving with the last table while the controller is away.
"""

from __future__ import annotations

from gymbox.proxy.routes import Routes
from gymbox.proxy.server import Proxy
from gymbox.proxy.settings import ProxyLimits, ProxySettings, Upstream

__all__ = ["Proxy", "ProxyLimits", "ProxySettings", "Routes", "Upstream"]
