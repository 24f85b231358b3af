"""Paths that begin with a rollout."""

import pytest
from gymbox.models.rollout_paths import RolloutPaths, is_rollout, rollout_in
from starlette.types import Receive, Scope, Send


async def seen(path: str, raw: bytes | None = None, header: bytes | None = None) -> Scope:
    """What an app behind the paths is called with."""
    found: list[Scope] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        found.append(scope)

    headers = [(b"host", b"here")] + ([(b"x-gymbox-rollout", header)] if header else [])
    scope = {"type": "http", "path": path, "raw_path": raw if raw is not None else path.encode(), "headers": headers}
    await RolloutPaths(app)(scope, None, None)  # type: ignore[arg-type]
    return found[0]


@pytest.mark.parametrize(
    "prefix", ["/rollouts/r-1.2", "/ng-rollout/r-1.2", "/ng-rollout/r-1.2/training-token-capture"]
)
async def test_the_prefix_goes_and_names_the_rollout(prefix: str) -> None:
    scope = await seen(f"{prefix}/v1/responses", header=b"another")
    assert scope["path"] == "/v1/responses" and scope["raw_path"] == b"/v1/responses"
    assert scope["headers"] == [(b"host", b"here"), (b"x-gymbox-rollout", b"r-1.2")]
    assert rollout_in(f"{prefix}/v1/responses") == "r-1.2"


@pytest.mark.parametrize(
    "path", ["/v1/responses", "/rollouts/", "/rollouts/a b/v1", "/rollouts/x", "/v1/rollouts/x/y"]
)
async def test_other_paths_pass_as_they_are(path: str) -> None:
    scope = await seen(path, header=b"given")
    assert scope["path"] == path and (b"x-gymbox-rollout", b"given") in scope["headers"]
    assert rollout_in(path) is None


async def test_a_rollout_within_a_rollout_is_no_path() -> None:
    found: list[Scope] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        found.append(scope)

    scope = {"type": "http", "path": "/rollouts/mine/ng-rollout/others/v1/responses", "headers": []}
    # whoever may call as the one must not be taken for the other, however often the prefix is looked for
    await RolloutPaths(RolloutPaths(app))(scope, None, None)  # type: ignore[arg-type]
    assert found[0]["path"] == "/ng-rollout/others/v1/responses"
    assert found[0]["headers"] == [(b"x-gymbox-rollout", b"mine")]


async def test_an_escaped_path_is_cut_at_the_same_place() -> None:
    scope = await seen("/rollouts/abc/v1/models/a b", raw=b"/rollouts/abc/v1/models/a%20b")
    assert (scope["path"], scope["raw_path"]) == ("/v1/models/a b", b"/v1/models/a%20b")
    scope = await seen("/rollouts/abc/v1/models", raw=b"/rollouts/%61bc/v1/models")
    assert (scope["path"], scope["raw_path"]) == ("/v1/models", b"/v1/models")


async def test_what_is_no_request_passes() -> None:
    found: list[Scope] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        found.append(scope)

    await RolloutPaths(app)({"type": "lifespan"}, None, None)  # type: ignore[arg-type]
    assert found == [{"type": "lifespan"}]


@pytest.mark.parametrize("id", ["", "a b", "a/b", "é", "a\n", "x" * 129])
def test_what_no_path_can_name_is_no_rollout(id: str) -> None:
    assert not is_rollout(id)
    assert is_rollout("run.1_a~b-C") and is_rollout("x" * 128)
