"""What a proxy may be told."""

from __future__ import annotations

import pytest
from gymbox.proxy import ProxySettings
from pydantic import ValidationError


def test_an_upstream_may_be_given_by_its_address_alone() -> None:
    settings = ProxySettings.model_validate(
        {"models": {"local": "http://model:8000/", "paid": {"url": "https://api.example/v1", "token": "sk-secret"}}}
    )
    assert settings.models["local"].base == "http://model:8000"
    assert settings.models["paid"].base == "https://api.example/v1"
    assert "sk-secret" not in repr(settings)


@pytest.mark.parametrize(
    "wrong",
    [
        {"models": {"a/b": "http://x"}},
        {"agents": {"x": "file:///etc/passwd"}},
        {"admin_port": 0},
        {"no_such_setting": 1},
    ],
)
def test_what_cannot_work_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        ProxySettings.model_validate(wrong)


def test_every_setting_says_what_it_is() -> None:
    import ast
    import inspect

    from gymbox.proxy import settings

    body = next(
        node
        for node in ast.parse(inspect.getsource(settings)).body
        if isinstance(node, ast.ClassDef) and node.name == "ProxySettings"
    ).body
    for field, after in zip(body, body[1:], strict=False):
        if isinstance(field, ast.AnnAssign):
            assert isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant), ast.unparse(field)
