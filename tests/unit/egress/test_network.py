"""What a manifest may say of a network, and what that opens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gymbox.environment import Environment, Manifest
from gymbox.errors import ConfigError
from gymbox.network import AllowList, Network, Way, told, way_out
from pydantic import TypeAdapter, ValidationError


def network(value: Any) -> Network:
    return Manifest.model_validate({"name": "x", "description": "x", "network": value}).network


def test_a_sandbox_has_no_network_unless_its_manifest_says_so() -> None:
    assert Manifest(name="x", description="x").network == "none"
    assert way_out("none") is None and way_out("internal") is None


def test_entries_are_taken_in_lower_case() -> None:
    found = network({"allow": ["Example.ORG", "*.Example.org", "example.org:8443", "xn--bcher-kva.example"]})
    assert isinstance(found, AllowList)
    assert found.allow == ["example.org", "*.example.org", "example.org:8443", "xn--bcher-kva.example"]


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ("10.0.0.1", "is an address"),
        ("2130706433", "is an address"),
        ("0x7f.1", "is an address"),
        ("0177.0.0.1:80", "is an address"),
        ("[::1]", "has no port after its colon"),
        ("::1", "is no host name"),
        ("[::1]:80", "is an address"),
        ("localhost", "is no host name"),
        ("https://example.org", "has no port"),
        ("example.org/path", "is no host name"),
        ("user@example.org", "is no host name"),
        ("example.org:", "has no port"),
        ("example.org:0", "has no port"),
        ("example.org:70000", "has no port"),
        ("*", "is no host name"),
        ("*.org", "would open a whole top-level domain"),
        ("a.*.example.org", "is no host name"),
        ("*example.org", "is no host name"),
        ("-x.example.org", "is no host name"),
        ("bücher.example", "is no host name"),
        ("", "is no host name"),
        (f"{'a' * 64}.example.org", "is no host name"),
        (f"{'a.' * 130}org", "is no host name"),
    ],
)
def test_what_is_no_host_is_refused_with_an_example(entry: str, why: str) -> None:
    with pytest.raises(ValidationError, match=f"{why}.*write it as example.org"):
        network({"allow": [entry]})


@pytest.mark.parametrize(
    "value", [{"allow": []}, {"allow": ["a.org"] * 201}, {"deny": ["a.org"]}, "bridge", "host", []]
)
def test_other_networks_are_refused(value: Any) -> None:
    with pytest.raises(ValidationError):
        network(value)


@pytest.mark.parametrize(
    ("host", "port", "opened"),
    [
        ("example.org", 443, True),
        ("EXAMPLE.org.", 80, True),
        ("example.org", 22, False),
        ("www.example.org", 443, False),
        ("x.wild.org", 443, True),
        ("x.y.wild.org", 443, True),
        ("wild.org", 443, False),
        (".wild.org", 443, False),
        ("evilwild.org", 443, False),
        ("db.example.net", 5432, True),
        ("db.example.net", 443, False),
        ("example.org.evil.com", 443, False),
    ],
)
def test_an_entry_opens_its_host_and_port_and_nothing_else(host: str, port: int, opened: bool) -> None:
    way = Way(hosts=["example.org", "*.wild.org", "db.example.net:5432"])
    assert way.opens(host, port) is opened


def test_names_are_told_of_listed_hosts_whatever_their_port() -> None:
    way = Way(hosts=["db.example.net:5432", "*.wild.org"])
    assert way.knows("db.example.net") and way.knows("a.wild.org") and not way.knows("wild.org")
    assert not Way(hosts=[], models=True).knows("example.org") and Way().knows("example.org")


@pytest.mark.parametrize(
    ("value", "line", "relay"),
    [
        ("models", "models", "models"),
        ("open", "open", "hosts"),
        ({"allow": ["a.org", "b.org:1"]}, "allow: a.org, b.org:1", "hosts"),
        ({"allow": ["a.org"], "models": True}, "allow: a.org and models", "hosts,models"),
    ],
)
def test_a_network_is_told_in_a_line_and_to_the_relay(value: Any, line: str, relay: str) -> None:
    found: Network = TypeAdapter(Network).validate_python(value)
    assert told(found) == line and str(way_out(found)) == relay


def test_what_is_wrong_with_a_network_is_told_where_it_stands(tmp_path: Path) -> None:
    def told_of(network: str) -> str:
        folder = tmp_path / "wrong"
        folder.mkdir(exist_ok=True)
        (folder / "environment.yaml").write_text(f"description: x\nnetwork: {network}\n")
        with pytest.raises(ConfigError) as caught:
            Environment.load(folder)
        return str(caught.value).partition("is wrong:\n")[2]

    assert told_of("bridge") == (
        "  network: 'bridge' is no network: write none, internal, models, open or {allow: [example.org, …]}"
    )
    assert told_of("{allow: [10.0.0.1]}").startswith("  network.allow.0: '10.0.0.1' is an address: write it as")
