"""Places: where a name leads, and which addresses are never connected to, whatever name leads there.

The check is made on the address that is then connected to, so a name that changes its address between two questions
gains nothing by it.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial

from gymbox.egress.ledger import Refused

CONNECT_TIMEOUT = 10.0
"""Seconds for one address."""
_MOST_ADDRESSES = 4
"""Addresses of one name that are tried."""
_LOOK_UPS = ThreadPoolExecutor(128, "look-up")
"""A thread waits for each: more than a few sandboxes that ask for names without an answer can hold."""
_NEVER = tuple(
    ipaddress.ip_network(network)
    for network in (
        "168.63.129.16/32",  # a cloud's metadata at a public address
        "192.0.0.0/24",  # another's, and protocol assignments
        "192.88.99.0/24",
        "2001::/23",  # Teredo and other protocol assignments
        "2002::/16",  # 6to4: an IPv4 address in another dress
        "64:ff9b::/96",  # NAT64: the same
        "64:ff9b:1::/48",
    )
)

_UNICAST = ipaddress.ip_network("2000::/3")
"""Where all of the internet's IPv6 addresses are."""

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolve = Callable[[str, int], Awaitable[list[str]]]


def is_public(address: Address) -> bool:
    """Whether it is a host of the internet: not private, loopback, link-local, shared, reserved, a metadata service,
    an IPv4 address inside an IPv6 one, nor one of this machine's own."""
    if isinstance(address, ipaddress.IPv6Address) and address not in _UNICAST:
        return False
    if not address.is_global or address.is_multicast or address.is_reserved or address.is_unspecified:
        return False
    return not any(address in network for network in _NEVER) and not _is_own(address)


def _is_own(address: Address) -> bool:
    """Whether it is an address of this machine: what listens here on all addresses would be reached by it."""
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    with closing(socket.socket(family, socket.SOCK_DGRAM)) as probe:
        try:
            probe.connect((str(address), 9))  # sends nothing; the kernel only chooses where it would come from
        except OSError:
            return False  # no route: connecting to it will say so
        return ipaddress.ip_address(probe.getsockname()[0]) == address


async def resolve(host: str, port: int) -> list[str]:
    """The addresses of a name, as this machine's resolver has them.

    Raises:
        OSError: it has none.
    """
    look_up = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    found = await asyncio.get_running_loop().run_in_executor(_LOOK_UPS, look_up)
    return [str(address[0]) for *_, address in found]


class Places:
    """Connects to hosts by name.

    Args:
        resolve: gives a name's addresses.
        permitted: says whether an address may be connected to.
    """

    def __init__(self, resolve: Resolve = resolve, permitted: Callable[[Address], bool] = is_public) -> None:
        self._resolve = resolve
        self._permitted = permitted

    async def connect(
        self, host: str, port: int, turns: asyncio.Semaphore
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to the first permitted address of a host that takes one.

        Args:
            turns: a sandbox's look-ups under way.

        Raises:
            Refused: it has no address that may be connected to, or none that answers.
        """
        target = f"{host}:{port}"
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                addresses = await self._addresses(host, port, turns)
            found = [ipaddress.ip_address(text.partition("%")[0]) for text in addresses]
        except (OSError, ValueError) as error:
            raise Refused(target, "the name has no address", status=502) from error
        permitted = [address for address in dict.fromkeys(found) if self._permitted(address)]
        if not permitted:
            shown = ", ".join(str(address) for address in found[:_MOST_ADDRESSES])
            raise Refused(target, f"it leads to {shown}, which is private or this machine's own")
        for address in permitted[:_MOST_ADDRESSES]:
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT):
                    return await self.dial(address, port)
            except (OSError, TimeoutError):
                continue
        raise Refused(target, "it does not take a connection", status=502)

    async def _addresses(self, host: str, port: int, turns: asyncio.Semaphore) -> list[str]:
        """A look-up goes on when nobody waits for it any more, and its turn ends with it."""
        await turns.acquire()
        looking = asyncio.ensure_future(self._resolve(host, port))
        looking.add_done_callback(lambda _: turns.release())
        return await asyncio.shield(looking)

    async def dial(self, address: Address, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to exactly this address; a test's internet has its ports elsewhere.

        Raises:
            OSError: it takes none.
        """
        return await asyncio.open_connection(str(address), port)
