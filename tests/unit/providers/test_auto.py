"""The provider that chooses passes on what the one that it chose can do beyond a provider's verbs."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from gymbox.environment import Environment, Manifest
from gymbox.network import Traffic
from gymbox.providers import ModelsAt, StartSpec, lead_models, traffic_of
from gymbox.providers.auto import AutoProvider
from gymbox.providers.docker import DockerProvider
from gymbox.providers.egress import Egress
from gymbox.providers.process import ProcessProvider

STUB = Path(__file__).parents[2] / "stub_egress.py"
TO = ModelsAt("http://127.0.0.1:9", "key", one=True)


class Opened:
    """An open DockerProvider's worker, as far as its sandboxes' ways out go."""

    def __init__(self, egress: Egress) -> None:
        self.egress = egress


async def test_the_ways_out_of_containers_are_told_and_led_through_it(tmp_path: Path) -> None:
    egress, docker, auto = Egress([sys.executable, str(STUB), "{}"]), DockerProvider(), AutoProvider()
    docker._worker, auto._worker = Opened(egress), docker  # type: ignore[assignment]
    manifest = Manifest.model_validate({"name": "plain", "description": "For a test.", "network": "models"})
    (tmp_path / "box").mkdir()
    await egress.open(StartSpec("box", Environment(tmp_path, manifest), tmp_path / "box"))
    ask = b"mGET /v1/models HTTP/1.1\r\nHost: models\r\n\r\n"

    async def asked() -> bytes:
        reader, writer = await asyncio.open_unix_connection(tmp_path / "box" / "egress.sock")
        writer.write(ask)
        async with asyncio.timeout(20):
            answer = await reader.read(-1)
        writer.close()
        return answer

    assert b"this sandbox has no models" in await asked()
    lead_models(auto, "box", TO)
    assert b"what has the models does not answer" in await asked()
    for _ in range(400):
        if traffic_of(auto, "box").models_unanswered:
            break
        await asyncio.sleep(0.05)
    assert traffic_of(auto, "box").models_unanswered == 1
    await egress.close()


def test_where_it_has_chosen_none_or_one_without_ways_out_there_is_nothing_to_tell() -> None:
    auto = AutoProvider()
    for chosen in (None, ProcessProvider()):
        auto._worker = chosen
        lead_models(auto, "box", TO)
        assert traffic_of(auto, "box") == Traffic()
