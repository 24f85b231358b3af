"""Pull: an image from its registry, tried again where that can help, with a failure that says what to do."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

import requests
import urllib3
from docker.errors import APIError, NotFound

from gymbox.errors import ErrorKind, ImageBuildFailed, ImageNotPulled, RegistryAway

log = logging.getLogger(__name__)

PAUSES = (1.0, 2.0)
"""Seconds before the second try, and the third."""
LONGEST = 1800.0
"""Seconds that all tries may take: a registry that drips must not hold up for ever whoever waits for its image."""
NO_ACCESS = re.compile(
    r"unauthorized|denied|forbidden|no basic auth credentials|authentication required|incorrect username|\b40[13]\b",
    re.IGNORECASE,
)
NOT_FOUND = re.compile(r"manifest unknown|name unknown|not found|does not exist|no matching manifest", re.IGNORECASE)
AWAY = re.compile(
    r"connection re(?:fused|set)|no such host|timeout|timed out|deadline exceeded|\bEOF\b|server misbehaving|"
    r"unreachable|no route to host|temporary failure|toomanyrequests|TLS handshake|\b(?:429|5\d\d)\b",
    re.IGNORECASE,
)


def ensure_pulled(engine: Any, reference: str, pauses: Sequence[float] = PAUSES) -> dict[str, Any]:
    """What the engine tells of an image, which is pulled where it is missing; blocks.

    A name with a digest is exactly that content: the engine has checked it against the digest.

    Raises:
        ImageNotPulled: the registry does not have it, or does not give it to us.
        RegistryAway: the registry did not answer, however often it was asked.
        ImageBuildFailed: the engine cannot take it, for want of room for instance.
    """
    try:
        return _inspected(engine, reference)
    except NotFound:
        pass
    until = time.monotonic() + LONGEST
    for pause in (*pauses, None):
        try:
            _pull(engine, reference, until)
            return _inspected(engine, reference)
        except RegistryAway as error:
            if pause is None or time.monotonic() > until:
                raise
            log.info("%s; trying again in %g s", error.detail, pause)
            time.sleep(pause)
    raise AssertionError


def digest_of(reference: str, inspected: Mapping[str, Any]) -> str:
    """What an image is named by for good: `name@sha256:…` where a registry has it, else the engine's own id."""
    name = reference.partition("@")[0]
    name = name if ":" not in name.rpartition("/")[2] else name.rpartition(":")[0]
    found: list[str] = inspected.get("RepoDigests") or []
    return next((digest for digest in found if digest.partition("@")[0] == name), str(inspected["Id"]))


def _inspected(engine: Any, reference: str) -> dict[str, Any]:
    return dict(engine.inspect_image(reference))


def _pull(engine: Any, reference: str, until: float) -> None:
    name, _, digest = reference.partition("@")
    tagged = ":" in name.rpartition("/")[2]
    repository = name.rpartition(":")[0] if tagged else name
    tag = digest or (name.rpartition(":")[2] if tagged else "latest")
    try:
        for chunk in engine.pull(repository, tag=tag, stream=True, decode=True):
            if time.monotonic() > until:
                raise RegistryAway(f"{reference} was not there after {LONGEST:g} s")
            if "error" in chunk:
                raise _failure(reference, str(chunk["error"]))
    except APIError as error:
        raise _failure(reference, error.explanation or str(error)) from error
    except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
        raise RegistryAway(f"{reference} cannot be pulled: {error}") from error


def _failure(reference: str, said: str) -> ImageNotPulled | RegistryAway | ImageBuildFailed:
    text = " ".join(said.split())[:300]
    if NO_ACCESS.search(text):
        detail = f"no access to {reference}, or there is no such image: {text}; `docker login` to its registry"
        return ImageNotPulled(ErrorKind.IMAGE_NO_ACCESS, detail)
    if NOT_FOUND.search(text):
        return ImageNotPulled(ErrorKind.IMAGE_NOT_FOUND, f"its registry does not have {reference}: {text}")
    if AWAY.search(text):
        return RegistryAway(f"the registry of {reference} does not answer: {text}")
    return ImageBuildFailed(f"{reference} cannot be pulled: {text}")
