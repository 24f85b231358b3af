"""Which addresses are never connected to, and what comes of names that lead nowhere."""

from __future__ import annotations

import asyncio
import ipaddress
import socket

import pytest
from gymbox.egress import places
from gymbox.egress.ledger import Refused
from gymbox.egress.places import Places, is_public


@pytest.mark.parametrize(
    "address",
    [
        *("0.0.0.0", "10.1.2.3", "100.64.0.1", "100.100.100.200", "127.0.0.1", "127.8.8.8", "168.63.129.16"),
        *("169.254.169.254", "172.16.0.1", "172.31.255.255", "192.0.0.192", "192.168.1.1", "192.88.99.1"),
        *("198.18.0.1", "203.0.113.10", "224.0.0.1", "239.1.1.1", "240.0.0.1", "255.255.255.255"),
        *("::", "::1", "::ffff:8.8.8.8", "::ffff:127.0.0.1", "::ffff:169.254.169.254", "::127.0.0.1", "fc00::1"),
        *("fd00:ec2::254", "fe80::1", "ff02::1", "2001:db8::1", "2001::1", "2002:7f00:1::", "2002:0808:0808::1"),
        *("64:ff9b::7f00:1", "64:ff9b::808:808", "64:ff9b:1::a00:1", "100::1", "fec0::1"),
    ],
)
def test_an_address_that_is_not_of_the_internet_is_never_public(address: str) -> None:
    assert not is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize("address", ["1.1.1.1", "8.8.8.8", "93.184.216.34", "2606:4700::1111", "2a00:1450:4001::1"])
def test_an_address_of_the_internet_is_public(address: str) -> None:
    assert is_public(ipaddress.ip_address(address))


def test_an_address_of_this_machine_is_its_own() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("8.8.8.8", 9))
        mine = ipaddress.ip_address(probe.getsockname()[0])
    assert places._is_own(mine) and not places._is_own(ipaddress.ip_address("8.8.8.8"))


async def test_a_name_without_address_is_told() -> None:
    with pytest.raises(Refused, match=r"nowhere.invalid:80: the name has no address") as caught:
        await Places().connect("nowhere.invalid", 80, asyncio.Semaphore())
    assert caught.value.status == 502


async def test_this_machines_resolver_leads_to_no_private_address() -> None:
    with pytest.raises(Refused, match="which is private or this machine's own"):
        await Places().connect("localhost", 80, asyncio.Semaphore())


async def test_a_host_that_takes_no_connection_is_told() -> None:
    async def here(host: str, port: int) -> list[str]:
        return ["127.0.0.9", "127.0.0.9"]

    with pytest.raises(Refused, match="does not take a connection"):
        await Places(here, lambda address: True).connect("closed.test", 9, asyncio.Semaphore())


async def test_a_look_up_that_does_not_end_keeps_its_turn_also_when_nobody_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(places, "CONNECT_TIMEOUT", 0.05)
    may_end, asked = asyncio.Event(), []

    async def slow(host: str, port: int) -> list[str]:
        asked.append(host)
        await may_end.wait()
        raise OSError

    turns, stub = asyncio.Semaphore(1), Places(slow)
    for name in ("one.test", "two.test"):
        with pytest.raises(Refused, match="the name has no address"):
            await stub.connect(name, 80, turns)
    assert asked == ["one.test"]
    may_end.set()
    with pytest.raises(Refused, match="the name has no address"):
        await stub.connect("three.test", 80, turns)
    assert asked == ["one.test", "three.test"] and not turns.locked()
