"""Preparation: the images of environments on one engine, each made once, however many sandboxes wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any

from gymbox.environment import Environment
from gymbox.providers.engine import Engine
from gymbox.providers.images import Images, ServiceImage


class Preparation:
    """Has them made, and knows what was made.

    Args:
        engine: whose they are; it is connected.
    """

    def __init__(self, engine: Engine, images: Images) -> None:
        self._engine = engine
        self._images = images
        self._builds: dict[str, asyncio.Task[str]] = {}
        """By environment's digest, as the next."""
        self._services: dict[str, Mapping[str, ServiceImage]] = {}

    async def close(self) -> None:
        """Wait for no build any more; safe to call twice."""
        for build in self._builds.values():
            build.cancel()
        await asyncio.gather(*self._builds.values(), return_exceptions=True)

    async def image(self, environment: Environment) -> str:
        """The tag of its image; that and those of its services are there then.

        Raises:
            ImageBuildFailed, ImageNotPulled, RegistryAway: see `Images.ensure`; who asks again has it tried again.
            Unavailable: the engine does not answer.
        """
        build = self._builds.get(environment.digest)
        if build is None or (build.done() and (build.cancelled() or build.exception() is not None)):
            build = asyncio.create_task(self._build(environment))
            self._builds[environment.digest] = build
        return await asyncio.shield(build)  # who leaves early does not stop it for the others

    async def _build(self, environment: Environment) -> str:
        tag = await self._engine.call_aside("build an image", partial(self._images.ensure, environment))
        ensure = partial(self._images.ensure_service, environment)
        self._services[environment.digest] = {
            name: await self._engine.call_aside(f"make the image of {name}", partial(ensure, name))
            for name in environment.manifest.services
        }
        return tag

    def services(self, environment: Environment) -> Mapping[str, ServiceImage]:
        """The images of its services, by their names; its own was asked for before."""
        return self._services[environment.digest]

    def base_of(self, environment: Environment) -> str | None:
        """See `Images.base_of`."""
        return self._images.base_of(environment)

    async def fitted(self, config: dict[str, Any], image: str) -> dict[str, Any]:
        """What the engine is asked to create, made fit for an image that is not built on our runtime's.

        Raises:
            ImageNotFound: there is no such image any more.
            ImageBuildFailed, Unavailable: there is no runtime for it.
        """
        foreign = await self._engine.call(f"look at {image}", self._images.foreign, image)
        return foreign.fitted(config) if foreign else config

    def doubt(self, image: str) -> None:
        """A sandbox of this image did not start: look again at what it needs before the next one."""
        self._images.doubt(image)

    def forget(self, environment: Environment, image: str) -> None:
        """Its image was removed by someone: make it anew when it is asked for again."""
        self._images.doubt(image)
        self._builds.pop(environment.digest, None)
