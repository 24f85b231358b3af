"""Images that nothing needs any more go, and no others."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker.errors
import pytest
from gymbox.cli import main
from gymbox.providers import stock as stock_module
from gymbox.providers.stock import Stock


@pytest.fixture
def made(engine: Any) -> Iterator[set[str]]:
    """The images of a test, which removes them. Nobody else's may be touched: other tests may be running."""
    tags: set[str] = set()
    yield tags
    for tag in tags:
        with contextlib.suppress(docker.errors.ImageNotFound):
            engine.images.remove(tag, force=True)


def prune(engine: Any, made: set[str], *wanted: str, older_than: float = 0, dry: bool = False) -> list[str]:
    """What a prune removes for which all images are wanted that are not of this test."""
    stock = Stock(engine.api)
    others = {item.image for item in stock.items({})} - made
    return [item.image for item in stock.prune({"test": {*others, *wanted}}, older_than, dry=dry)]


async def test_only_what_is_old_not_wanted_and_not_used_is_removed(
    sandboxes: Any, environment: Any, engine: Any, made: set[str]
) -> None:
    used = (await sandboxes.start(environment(files={"a.txt": "used"}))).image
    wanted, old = [await sandboxes.provider.prepare(environment(files={"a.txt": name})) for name in ("wanted", "old")]
    made |= {used, wanted, old, "someones/own:1"}
    engine.images.get(old).tag("someones/own", "1")
    assert await asyncio.to_thread(prune, engine, made, wanted, older_than=3600) == []
    assert await asyncio.to_thread(prune, engine, made, wanted, dry=True) == []  # someone has given it a name
    engine.images.remove("someones/own:1")
    assert await asyncio.to_thread(prune, engine, made, wanted, dry=True) == [old]
    assert await asyncio.to_thread(prune, engine, made, wanted) == [old]
    left = {tag for image in engine.images.list() for tag in image.tags}
    assert {used, wanted} <= left and old not in left


async def test_an_image_made_of_a_sandboxes_container_keeps_what_that_ran_from(
    sandboxes: Any, environment: Any, engine: Any, made: set[str]
) -> None:
    started = await sandboxes.start(environment(files={"a.txt": "forked"}))
    made |= {started.image, "someones/fork:1"}
    engine.containers.get(started.id).commit("someones/fork", "1")
    await sandboxes.provider.stop(started.id)
    try:
        assert await asyncio.to_thread(prune, engine, made) == []
    finally:
        engine.images.remove("someones/fork:1")
    assert await asyncio.to_thread(prune, engine, made) == [started.image]


def test_a_look_that_a_killed_process_has_left_goes_once_it_is_old(
    engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = engine.containers.create("debian:trixie-slim", ["x"], labels={"gymbox.image": "probe"})
    everything = engine.api.containers
    try:
        with monkeypatch.context() as patch:
            # others' looks may be under way, which are young
            patch.setattr(
                engine.api, "containers", lambda **asked: [row for row in everything(**asked) if row["Id"] == left.id]
            )
            stock = Stock(engine.api)
            stock._remove_probes()
            engine.containers.get(left.id)
            patch.setattr(stock_module, "LONGEST_PROBE", -60)
            stock._remove_probes()
            with pytest.raises(docker.errors.NotFound):
                engine.containers.get(left.id)
    finally:
        with contextlib.suppress(docker.errors.NotFound):
            left.remove(force=True)


def test_the_command_line_builds_lists_and_tells_what_would_go(
    environment: Any, made: set[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    plain = environment(image={"base": "debian:trixie-slim"})
    folder = ["--folder", str(plain.folder.parent)]
    settings = f"provider.docker.build_folder={tmp_path}/builds"

    def gymbox(*words: str) -> tuple[Any, Any]:
        try:
            main(["image", *words])
        except SystemExit as ended:
            return ended.code, capsys.readouterr().out
        return 0, capsys.readouterr().out

    code, out = gymbox("build", settings, *folder, "--json")
    [built] = json.loads(out)
    made.add(built["image"])
    assert not code and built["environment"] == "plain" and built["base"].startswith("sha256:")
    listed = {item["image"]: item for item in json.loads(gymbox("ls", *folder, "--json")[1])}
    item = listed[built["image"]]
    assert item["used_by"] == "plain" and item["size"] > 1e6 and item["created"] <= time.time()
    assert f"{built['image']} " in gymbox("ls", *folder)[1]

    (plain.folder / "more.txt").write_text("another content")
    code, out = gymbox("prune", *folder, "--older-than", "0", "--dry-run")
    assert not code and built["image"] in out and "would remove" in out
    assert built["image"] not in gymbox("prune", *folder, "--dry-run", "--older-than", "1h")[1]

    (plain.folder / "environment.yaml").write_text("description: x\nimage: {dockerfile: nowhere}\n")
    assert gymbox("build", settings, *folder)[0] == 1
