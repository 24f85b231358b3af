"""Leftovers: what an earlier process of a controller has left on the engine that is of use to nobody any more."""

from __future__ import annotations

import contextlib
import logging
from typing import Any

from docker.errors import APIError
from docker.errors import NotFound as NoSuchThing

from gymbox.providers.container import directory_of
from gymbox.providers.directories import remove_directory
from gymbox.providers.service_container import doomed

logger = logging.getLogger(__name__)


def remove_leftovers(api: Any, label: str) -> None:
    """Remove containers with this label that run no more, or never did, what belongs to them, and networks with it
    that nobody is in. What the engine does not let go now is left to the next time.

    One by one and never by a prune, of which an engine does only one at once, whosever it is.

    Args:
        api: a connected client; its calls block.

    Raises:
        APIError, DockerException: nothing can be listed.
    """
    for row in doomed(api.containers(all=True, filters={"label": label})):
        try:
            with contextlib.suppress(NoSuchThing):
                api.remove_container(row["Id"], v=True, force=True)
        except APIError as error:  # such as a removal that someone else has begun
            logger.warning("container %s is left to the next sweep: %s", row["Names"][0].removeprefix("/"), error)
            continue
        if directory := directory_of(row["Labels"]):
            with contextlib.suppress(OSError):
                remove_directory(directory)
    for network in api.networks(filters={"label": label}):
        try:
            api.remove_network(network["Id"])
        except APIError as error:  # somebody is in it, or someone else has removed it
            logger.debug("network %s stays: %s", network["Name"], error)
