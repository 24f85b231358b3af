"""Which token may call what."""

from __future__ import annotations

import hashlib

import pytest
from gymbox.errors import Forbidden, NotFound, Problem, Unauthorized
from gymbox.proxy.access import check_client, check_sandbox
from gymbox.proxy.paths import Scope
from gymbox_sandbox.lifecycle import Route


def sha256(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


ROUTE = Route(sandbox="a", socket="/x", tools_token=sha256("tools"), control_token=sha256("control"))
ADMIN = sha256("admin")


@pytest.mark.parametrize(
    ("token", "scope", "refused"),
    [
        ("tools", Scope.TOOLS, None),
        ("tools", Scope.CONTROL, Forbidden),
        ("control", Scope.TOOLS, None),
        ("control", Scope.CONTROL, None),
        ("admin", Scope.TOOLS, None),
        ("admin", Scope.CONTROL, None),
        ("another sandbox's", Scope.TOOLS, NotFound),
        ("another sandbox's", Scope.CONTROL, NotFound),
        ("", Scope.TOOLS, Unauthorized),
        (ADMIN, Scope.TOOLS, NotFound),  # a hash is no token
    ],
)
def test_a_token_may_make_the_calls_of_its_scope(token: str, scope: Scope, refused: type[Problem] | None) -> None:
    if refused is None:
        assert check_sandbox(token, ROUTE, "a", scope, ADMIN) is ROUTE
    else:
        with pytest.raises(refused):
            check_sandbox(token, ROUTE, "a", scope, ADMIN)


@pytest.mark.parametrize("scope", Scope)
def test_a_strangers_token_cannot_tell_whether_a_sandbox_exists(scope: Scope) -> None:
    with pytest.raises(NotFound) as there:
        check_sandbox("stranger", ROUTE, "a", scope, ADMIN)
    with pytest.raises(NotFound) as nowhere:
        check_sandbox("stranger", None, "a", scope, ADMIN)
    assert there.value.to_wire() == nowhere.value.to_wire()


def test_without_an_admin_token_nobody_is_admin() -> None:
    with pytest.raises(NotFound):
        check_sandbox("admin", ROUTE, "a", Scope.TOOLS, "")


def test_models_and_agents_ask_for_the_admin_token_or_a_clients() -> None:
    check_client("admin", ADMIN, ())
    check_client("client", ADMIN, [sha256("other"), sha256("client")])
    with pytest.raises(Unauthorized, match="not known here"):
        check_client("tools", ADMIN, [sha256("client")])
    with pytest.raises(Unauthorized):
        check_client("", ADMIN, [])
