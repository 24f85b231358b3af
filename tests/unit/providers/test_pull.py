"""What a registry's refusal is taken for, and what an image is named by for good."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import requests
from docker.errors import NotFound
from gymbox.errors import ImageBuildFailed, ImageNotPulled, RegistryAway, RolloutError, Stage
from gymbox.providers import pull
from gymbox.providers.pull import _failure, digest_of, ensure_pulled


@pytest.mark.parametrize(
    ("said", "kind", "retryable"),
    [
        ("manifest for x:1 not found: manifest unknown: manifest unknown", "image_not_found", False),
        ("no matching manifest for linux/amd64 in the manifest list entries", "image_not_found", False),
        ('Head "http://h/v2/x/manifests/1": no basic auth credentials', "image_no_access", False),
        (
            "pull access denied for x, repository does not exist or may require 'docker login'",
            "image_no_access",
            False,
        ),
        ('Get "http://h/v2/": dial tcp 127.0.0.1:1: connect: connection refused', "registry_unavailable", True),
        ('Get "https://h/v2/": net/http: TLS handshake timeout', "registry_unavailable", True),
        ("received unexpected HTTP status: 503 Service Unavailable", "registry_unavailable", True),
        ("toomanyrequests: You have reached your pull rate limit", "registry_unavailable", True),
        ("write /var/lib/docker/tmp/x: no space left on device", "image_build_failed", False),
    ],
)
def test_a_refusal_is_of_one_kind_that_says_whether_another_try_helps(said: str, kind: str, retryable: bool) -> None:
    error = RolloutError.at(Stage.PROVISION, _failure("x:1", said))
    assert (error.kind, error.retryable) == (kind, retryable)
    assert "x:1" in error.detail


def test_what_the_engine_cannot_take_is_a_failed_build() -> None:
    assert isinstance(_failure("x", "invalid tar header"), ImageBuildFailed)


def test_a_pulled_image_is_named_by_its_registrys_digest_and_another_by_its_id() -> None:
    pulled = {"Id": "sha256:id", "RepoDigests": ["mirror/debian@sha256:1", "h:5000/debian@sha256:2"]}
    assert digest_of("h:5000/debian:trixie-slim", pulled) == "h:5000/debian@sha256:2"
    assert digest_of("h:5000/debian@sha256:2", pulled) == "h:5000/debian@sha256:2"
    assert digest_of("debian:trixie-slim", {"Id": "sha256:id", "RepoDigests": None}) == "sha256:id"


class Engine:
    """One that pulls nothing: it says why in the midst of it, or its line breaks."""

    def __init__(self, said: str | None) -> None:
        self._said = said
        self.asked: list[tuple[str, str]] = []

    def inspect_image(self, reference: str) -> dict[str, Any]:
        raise NotFound("no such image")

    def pull(self, repository: str, tag: str, stream: bool, decode: bool) -> Iterator[dict[str, str]]:
        self.asked.append((repository, tag))
        if self._said is None:
            raise requests.ConnectionError("the line broke")
        yield {"status": "Pulling"}
        yield {"error": self._said}


def test_a_refusal_in_the_midst_of_a_pull_is_told_and_not_tried_again() -> None:
    engine = Engine("denied: requested access to the resource is denied")
    with pytest.raises(ImageNotPulled):
        ensure_pulled(engine, "h:5000/x/y", [0, 0])
    assert engine.asked == [("h:5000/x/y", "latest")]


def test_a_broken_line_is_tried_three_times() -> None:
    engine = Engine(None)
    with pytest.raises(RegistryAway, match="the line broke"):
        ensure_pulled(engine, "x:1@sha256:2", [0, 0])
    assert engine.asked == [("x", "sha256:2")] * 3


def test_a_registry_that_drips_is_given_up_and_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull, "LONGEST", -1.0)
    engine = Engine("manifest unknown")
    with pytest.raises(RegistryAway, match="was not there after"):
        ensure_pulled(engine, "x:1", [0, 0])
    assert engine.asked == [("x", "1")]
