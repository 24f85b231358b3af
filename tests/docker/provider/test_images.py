"""Images are built once for each content, and a build that fails shows the step that did."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gymbox.errors import ErrorKind, ImageBuildFailed, RolloutError, Stage
from gymbox.providers.docker import DockerProvider
from gymbox_sandbox.lifecycle import Ended


@pytest.fixture(autouse=True)
def images_are_removed(engine: Any) -> Iterator[None]:
    before = {image.id for image in engine.images.list()}
    yield
    for image in engine.images.list(filters={"label": "gymbox.image=gymbox-env-plain"}):
        if image.id not in before:
            engine.images.remove(image.id, force=True)


async def test_one_content_is_built_once_however_many_ask_and_from_however_many_processes(
    sandboxes: Any, environment: Any, make_sandboxes: Any, tmp_path: Path
) -> None:
    new = environment(files={"only-here.txt": str(tmp_path)})
    async with make_sandboxes() as another_process:
        tags = await asyncio.gather(
            *(each.provider.prepare(new) for each in (sandboxes, another_process) for _ in range(5))
        )
    assert len(set(tags)) == 1
    assert len(list((tmp_path / "builds").glob("gymbox-env-plain-*.log"))) == 1


async def test_another_content_is_another_image(sandboxes: Any, environment: Any) -> None:
    first = await sandboxes.provider.prepare(environment(files={"a.txt": "1"}))
    second = await sandboxes.provider.prepare(environment(files={"a.txt": "2"}))
    assert first != second


async def test_an_image_that_was_removed_behind_our_back_is_built_again(
    sandboxes: Any, environment: Any, engine: Any
) -> None:
    new = environment(files={"again.txt": "1"})
    tag = await sandboxes.provider.prepare(new)
    engine.images.remove(tag, force=True)
    assert (await sandboxes.start(new)).image == tag


async def test_a_build_that_fails_shows_the_failing_step_and_can_be_tried_again(
    sandboxes: Any, environment: Any
) -> None:
    broken = environment(
        files={"Dockerfile": "ARG BASE_IMAGE\nFROM ${BASE_IMAGE}\nRUN echo fine\nRUN echo oh no >&2; exit 7\n"},
        image={"dockerfile": "Dockerfile"},
    )
    for _ in range(2):
        with pytest.raises(ImageBuildFailed) as raised:
            await sandboxes.start(broken)
        assert "non-zero code: 7" in raised.value.detail
        assert "exit 7" in raised.value.log.splitlines()[0] and "oh no" in raised.value.log
        assert "echo fine" not in raised.value.log
    error = RolloutError.at(Stage.PROVISION, raised.value)
    assert error.kind is ErrorKind.IMAGE_BUILD_FAILED and "oh no" in error.logs and not error.retryable


async def test_a_dockerfile_that_cannot_be_read_is_a_failed_build(sandboxes: Any, environment: Any) -> None:
    broken = environment(
        files={"Dockerfile": "ARG BASE_IMAGE\nFROM ${BASE_IMAGE}\nNONSENSE\n"}, image={"dockerfile": "Dockerfile"}
    )
    with pytest.raises(ImageBuildFailed, match="NONSENSE"):
        await sandboxes.provider.prepare(broken)


async def test_packages_requirements_and_an_own_dockerfile_are_in_the_image(
    sandboxes: Any, environment: Any, run_in: Any
) -> None:
    rich = environment(
        files={"Dockerfile": "ARG BASE_IMAGE\nFROM ${BASE_IMAGE}\nRUN echo made > /made\n"},
        image={"dockerfile": "Dockerfile", "packages": ["bc"], "pip": ["toolz==1.0.0"]},
    )
    started = await sandboxes.start(rich)
    done = await run_in(started, "cat /made; echo 6*7 | bc; /opt/gymbox/venv/bin/python -c 'import toolz; print(1)'")
    assert done["stdout"].split() == ["made", "42", "1"]


async def test_data_and_tests_are_not_in_the_image(sandboxes: Any, environment: Any, run_in: Any) -> None:
    started = await sandboxes.start(
        environment(files={"data/example.jsonl": "{}", "tests/test_x.py": "", "x.txt": ""})
    )
    done = await run_in(started, "ls /opt/gymbox/environment")
    assert done["stdout"].split() == ["environment.yaml", "server.py", "x.txt"]


async def test_a_base_image_that_is_nowhere_is_told_with_what_makes_one(environment: Any) -> None:
    provider = DockerProvider(base_image="localhost:1/no/such:image")

    def nobody(id: str, ended: Ended) -> None: ...

    await provider.open("test-no-base", nobody)
    try:
        with pytest.raises(ImageBuildFailed, match="gymbox.setup_base_image"):
            await provider.prepare(environment())
    finally:
        await provider.close()


async def test_a_build_that_takes_too_long_is_given_up(make_sandboxes: Any, environment: Any, tmp_path: Path) -> None:
    slow = environment(
        files={"Dockerfile": "ARG BASE_IMAGE\nFROM ${BASE_IMAGE}\nRUN sleep 2; echo done\nRUN sleep 60\n"},
        image={"dockerfile": "Dockerfile"},
    )
    async with make_sandboxes(DockerProvider(build_timeout=1, build_folder=tmp_path / "builds")) as impatient:
        with pytest.raises(ImageBuildFailed, match="not built in 1 s"):
            await impatient.provider.prepare(slow)
