"""Uvicorn parts: what serves HTTP in a sandbox, without uvicorn's command line.

Uvicorn's own `__init__` imports that, and click and multiprocessing with it: a twelfth of a sandbox's start, and
1.5 MiB that each of hundreds would hold. So the package comes without what its `__init__` defines, until somebody asks
for that.
"""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType
from typing import Any


def _spare(name: str) -> ModuleType | None:
    """Put the package in place without running its `__init__`, which the first look at anything in it makes good; None
    where it is there already."""
    spec = None if name in sys.modules else importlib.util.find_spec(name)
    if spec is None or spec.loader is None:
        return None
    loader, package = spec.loader, importlib.util.module_from_spec(spec)

    running = False

    def whole(attribute: str) -> Any:
        nonlocal running
        if "__getattr__" in package.__dict__ and not running:
            running = True  # its own modules look at the package, too
            try:
                loader.exec_module(package)
                del package.__dict__["__getattr__"]
            finally:
                running = False
        if attribute not in package.__dict__:
            raise AttributeError(f"module {name!r} has no attribute {attribute!r}")
        return package.__dict__[attribute]

    package.__dict__["__getattr__"] = whole
    sys.modules[name] = package
    return package


_package = _spare("uvicorn")

from uvicorn.config import Config  # noqa: E402

if _package is not None:
    _package.__dict__["Config"] = Config  # which uvicorn's own modules take from there

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol  # noqa: E402
from uvicorn.server import Server  # noqa: E402

__all__ = ["Config", "HttpToolsProtocol", "Server"]
