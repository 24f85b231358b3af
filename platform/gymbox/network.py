"""Network: what a sandbox may reach, as its manifest says it and as the egress process is told."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag

WEB_PORTS = (80, 443)
"""What an entry without a port opens."""
EGRESS_SOCKET = "egress.sock"
"""In a sandbox's directory: the one way out of it, for those networks that have one."""
RESOLVER = "resolv.conf"
"""Beside the sandboxes' directories: what such sandboxes have as /etc/resolv.conf."""
_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = re.compile(rf"(?:\*\.)?(?:{_LABEL}\.)+{_LABEL}")


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _entry(text: str) -> str:
    """An entry of `allow`, in lower case.

    Raises:
        ValueError: it is none; the text says how to write it.
    """
    name, colon, port = text.lower().rpartition(":") if ":" in text else (text.lower(), "", "")
    example = "write it as example.org, *.example.org or example.org:8443"
    if colon and not (port.isascii() and port.isdecimal() and 0 < int(port) < 65_536):
        raise ValueError(f"{text!r} has no port after its colon: {example}")
    if is_address(name):
        raise ValueError(f"{text!r} is an address: {example}")
    if name.startswith("*.") and name.count(".") == 1:
        raise ValueError(f"{text!r} would open a whole top-level domain: {example}")
    if len(name) > 253 or not _NAME.fullmatch(name):
        raise ValueError(f"{text!r} is no host name: {example} (names that are not ASCII in their xn-- form)")
    return f"{name}:{port}" if colon else name


class AllowList(Strict):
    """`network: {allow: [...]}`: these hosts, and no others."""

    allow: list[Annotated[str, AfterValidator(_entry)]] = Field(min_length=1, max_length=200)
    """`example.org`: ports 80 and 443 of this host; `example.org:8443`: this port of it; `*.example.org`: every name
    below it, not itself."""
    models: bool = False
    """Models, too, as with `network: models`."""


def _kind(value: Any) -> str:
    return "[list]" if isinstance(value, dict | AllowList) else "[name]"


def _name(value: Any) -> Any:
    if not isinstance(value, str) or value not in get_args(Name):
        raise ValueError(f"{value!r} is no network: write {', '.join(get_args(Name))} or {{allow: [example.org, …]}}")
    return value


Name = Literal["none", "internal", "models", "open"]
Network = Annotated[
    Annotated[Name, BeforeValidator(_name), Tag("[name]")] | Annotated[AllowList, Tag("[list]")],
    Discriminator(_kind),  # names with brackets are left out where a fault is told
]


class Way(Strict):
    """What the egress process lets one sandbox reach; it knows nothing else of networks."""

    hosts: list[str] | None = None
    """Entries of `allow`; None: every public host, at every port."""
    models: bool = False

    def __str__(self) -> str:
        """As `gymbox_sandbox.relay` is told it."""
        return ",".join(["hosts"] * (self.hosts != []) + ["models"] * self.models)

    def opens(self, host: str, port: int) -> bool:
        """Whether this host and port may be asked for; where that leads is another question."""
        host = canonical(host)
        return self.hosts is None or any(_matches(entry, host, port) for entry in self.hosts)

    def knows(self, host: str) -> bool:
        """Whether some port of this host may be asked for, so that its name may be told."""
        host = canonical(host)
        names = [entry.partition(":")[0] for entry in self.hosts or ()]
        return self.hosts is None or any(_is_named(name, host) for name in names)


class Refusal(Strict):
    """Something that a sandbox was refused."""

    kind: str
    """How it asked: `proxy`, `tls` and `http` (without the proxy), `dns`, `models`."""
    target: str
    why: str


class Traffic(Strict):
    """What one sandbox was let through to, and what it was refused."""

    let_through: int = 0
    """Connections that were made, and requests that were sent on."""
    names_answered: int = 0
    """Questions about listed names that were answered (`open`: about any). The answer is the sandbox's loopback, so
    this says nothing of connections."""
    refused: int = 0
    """Connections, requests and questions about names that were not let through, each time."""
    models_unanswered: int = 0
    """Model calls that the model's side gave no answer, since the last that got one. Where the egress process ended,
    one more may have been under way."""
    refusals: list[Refusal] = Field(default_factory=list)
    """The first 100 different ones (by kind and target), each once; `refused` counts every time."""


def way_out(network: Network) -> Way | None:
    """What leads out of a sandbox with this network; None: nothing does."""
    if isinstance(network, AllowList):
        return Way(hosts=network.allow, models=network.models)
    return {"models": Way(hosts=[], models=True), "open": Way()}.get(network)


def told(network: Network) -> str:
    """One line for readers and labels: `none`, `allow: example.org`, `open`, …"""
    if isinstance(network, AllowList):
        return f"allow: {', '.join(network.allow)}{' and models' if network.models else ''}"
    return network


def canonical(host: str) -> str:
    """A host's name as it is compared: lower case, without the dot of the root."""
    return host.lower().removesuffix(".")


def is_address(host: str) -> bool:
    """Whether it is an address, in any form that a resolver reads as one: `2130706433`, `0x7f.1`, `0177.0.0.1`, …"""
    try:
        ipaddress.ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return re.fullmatch(r"(?:0x[0-9a-f]*|[0-9]+)(?:\.(?:0x[0-9a-f]*|[0-9]+)){0,3}\.?", host.lower()) is not None
    return True


def _matches(entry: str, host: str, port: int) -> bool:
    name, _, only = entry.partition(":")
    return (port == int(only) if only else port in WEB_PORTS) and _is_named(name, host)


def _is_named(name: str, host: str) -> bool:
    return host.endswith(name[1:]) and len(host) > len(name) - 1 if name.startswith("*.") else host == name
