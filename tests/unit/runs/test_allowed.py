from __future__ import annotations

from pathlib import Path

import pytest
from gymbox.config import compose
from gymbox.errors import ConfigError
from gymbox.runs.allowed import check_overrides, check_settings, without_secrets

FINE = ["environment=counter", "model=scripted", "runner.limit=3", "agent.max_steps=4"]


def check(overrides: list[str], files: Path = Path("/nonexistent")) -> None:
    check_overrides(overrides)
    check_settings(compose(overrides), overrides, catalog=["counter", "weather"], files=files)


def test_components_and_their_fields_may_be_chosen() -> None:
    check(FINE)
    check(["environment=counter,weather", "model=openai", "model.name=m", "model.params.temperature=0.5"])


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("provider=docker", "'provider' cannot be set"),
        ("provider.host=tcp://x", "'provider.host' cannot be set"),
        ("controller=http://x", "'controller' cannot be set"),
        ("proxy.idle_timeout=1", "cannot be set"),
        ("sessions=64", "'sessions' cannot be set"),
        ("models.big=openai", "cannot be set"),
        ("hydra.searchpath=[file:///]", "cannot be set"),
        ("+model@judge=openai", "cannot be set"),
        ("~model", "cannot be set"),
        ("++model.name=x", "cannot be set"),
        ("model._target_=os.system", "neither"),
        ("model.params={_target_: os.system}", "neither"),
        ("model.name=${oc.env:HOME}", "neither"),
        ("model=../../secret", "is no choice"),
        ("agent={_target_: x}", "neither"),
        ("agent.skills=/root", "names a folder of the server"),
        ("agents.a=tool_loop", "cannot be set"),
        ("judge=[a,b]", "is no choice"),
        ("runner=default", "runner= cannot be set"),
        ("runner.output=/etc", "set by the server itself"),
        ("runner.resume=true", "set by the server itself"),
        ("runner.retry_failed=true", "set by the server itself"),
        ("runner.concurrency=60000", "may be 1024 at most"),
    ],
)
def test_what_reaches_further_is_refused(override: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        check([*FINE, override])


@pytest.mark.parametrize("environment", ["./environments/counter", "/etc", "..", "missing"])
def test_only_environments_of_the_catalog_may_be_named(environment: str) -> None:
    with pytest.raises(ConfigError, match="this server has no environment"):
        check([f"environment={environment}", "model=scripted"])


def test_files_may_be_named_only_where_the_runs_are(tmp_path: Path) -> None:
    base = ["environment=counter", "model=replay"]
    check([*base, f"model.cassette={tmp_path}/earlier"], files=tmp_path)
    for path in ("/etc/passwd", f"{tmp_path}/../other"):
        with pytest.raises(ConfigError, match="no others"):
            check([*base, f"model.cassette={path}"], files=tmp_path)
    for prompt in ("runner.prompt=/etc/passwd", "runner.prompt={counter: /etc/passwd}"):
        with pytest.raises(ConfigError, match=r"runner\.prompt: .* no others"):
            check(["environment=counter", "model=scripted", prompt], files=tmp_path)
    with pytest.raises(ConfigError, match=r"model\.datasets: .* no others"):
        check(["environment=counter", "model=scripted", "model.datasets=[/etc/passwd]"], files=tmp_path)


def test_a_key_of_the_server_goes_to_no_address_of_a_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-server")
    own = ["environment=counter", "model=openai", "model.name=m"]

    check(own)
    for address in ("model.base_url=http://evil/v1", 'model.replicas=[{url: "http://evil/v1"}]'):
        with pytest.raises(ConfigError, match="goes to no address of a caller's"):
            check([*own, address])
    check([*own, "model.base_url=http://mine/v1", "model.api_key=mine"])
    check([*own, "model.base_url=http://mine/v1", "model.api_key=null"])
    with pytest.raises(ConfigError, match="judge.api_key of this server"):
        check([*FINE, "judge=openai", "judge.name=m", "judge.base_url=http://evil/v1"])
    with pytest.raises(ConfigError, match="no caller may choose it"):
        check(["environment=counter", "model=litellm", "model.name=openai/m"])


def test_secrets_are_stars_in_what_is_kept() -> None:
    overrides = [
        "environment=counter",
        "model=chat",
        "model.name=m",
        "model.base_url=http://mine/v1",
        "model.api_key=short",
        "model.headers.X-Key=hidden",
        'judge.replicas=[{url: "http://a/v1", api_key: k}]',
        "judge=chat",
        "judge.name=j",
    ]

    kept = without_secrets(compose(overrides), overrides)

    assert kept[:4] == overrides[:4] and kept[7:] == overrides[7:]
    assert kept[4:7] == ["model.api_key=***", "model.headers.X-Key=***", "judge.replicas=***"]
