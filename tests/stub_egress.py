"""An egress process whose internet is this machine's loopback: `python stub_egress.py PORTS`, started by a provider.

`public.test` is 127.0.0.2, which counts as public; every other address counts as private. PORTS is JSON: where the
stub's servers really listen.
"""

from __future__ import annotations

import asyncio
import json
import sys

from gymbox.egress.__main__ import main
from gymbox.egress.places import Address, Places

PUBLIC = "127.0.0.2"
HOSTS = {"public.test": PUBLIC, "private.test": "127.0.0.1", "metadata.test": "169.254.169.254"}


class StubPlaces(Places):
    def __init__(self, ports: dict[int, int]) -> None:
        super().__init__(self._look_up, lambda address: str(address) == PUBLIC)
        self._ports = ports

    async def _look_up(self, host: str, port: int) -> list[str]:
        if host not in HOSTS:
            raise OSError(f"there is no {host}")
        return [HOSTS[host]]

    async def dial(self, address: Address, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await super().dial(address, self._ports.get(port, port))


if __name__ == "__main__":
    main(StubPlaces({int(port): real for port, real in json.loads(sys.argv[1]).items()}))
