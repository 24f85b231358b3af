from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest
from gymbox import logs
from gymbox.agents.single_turn import SingleTurn
from gymbox.agents.tool_loop import ToolLoop
from gymbox.config import Settings, compose, record, shipped
from gymbox.errors import ConfigError
from gymbox.models.chat import ChatModel
from gymbox.models.openai import OpenAIModel
from gymbox.models.scripted import ScriptedModel
from gymbox.providers.docker import DockerProvider
from gymbox.providers.process import ProcessProvider
from pydantic import ValidationError


def settings(*overrides: str) -> Settings:
    return compose(["environment=counter", "model=scripted", *overrides])


def refusal(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        settings(*overrides)
    return str(caught.value)


def test_groups_choose_components_and_dots_set_their_fields() -> None:
    found = settings("agent=single_turn", "agent.instructions=be brief", "provider=process", "runner.repeats=4")

    assert found.agent == SingleTurn(instructions="be brief")
    assert isinstance(found.model, ScriptedModel) and isinstance(found.provider, ProcessProvider)
    assert found.runner.repeats_of("counter") == 4 and found.runner.concurrency == 8


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ("counter", ("counter",)),
        ("counter,weather", ("counter", "weather")),
        ("[counter, 'weather']", ("counter", "weather")),
        ("./my environments/it's,/a=b", ("./my environments/it's", "/a=b")),
    ],
)
def test_environment_is_a_list_of_names_or_folders(given: str, names: tuple[str, ...]) -> None:
    assert compose([f"environment={given}", "model=scripted"]).environment == names


def test_agents_have_names_and_fields_of_their_own_and_are_recorded() -> None:
    found = settings("agents.one=tool_loop", "agents.one.max_steps=3", "agents.b-2=single_turn", "models.one=scripted")

    assert found.agents == {"one": ToolLoop(max_steps=3), "b-2": SingleTurn()}
    told = found.record()
    assert told["agents"]["one"]["max_steps"] == 3 and set(told["models"]) == {"one"}
    assert "agents" not in settings().record()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("agents.one=tool_lop", "there is no agent 'tool_lop'; did you mean 'tool_loop'"),
        ("agents.one.max_steps=3", "agents.one has no _target_; choose one with agents.one=NAME"),
        ("agents.one={_target_: gymbox.models.scripted.ScriptedModel}", "ScriptedModel is no Agent"),
        ("agents._one=tool_loop", "agents._one"),
        ("agent.skills=nowhere", "skills: the skills in nowhere cannot be read"),
    ],
)
def test_an_agent_that_cannot_be_is_told(override: str, message: str) -> None:
    assert message in refusal(override)


@pytest.mark.parametrize("group", ["agent", "model", "provider"])
def test_every_shipped_choice_can_be_composed(group: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for choice, kind in shipped(group).items():
        named = {"openai", "anthropic", "litellm", *(addressed := {"chat", "azure", "azure_chat"})}
        needs = ["model.name=m"] if choice in named else ["model.cassette=x"] if choice == "replay" else []
        needs += ["model.base_url=http://h/v1"] if choice in addressed else []
        assert type(getattr(settings(f"{group}={choice}", *needs), group)) is kind


def test_the_key_of_openai_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    model = settings("model=openai", "model.name=gpt-4.1").model
    assert isinstance(model, OpenAIModel) and model.api_key is not None
    assert model.api_key.get_secret_value() == "sk-secret" and model.name == "gpt-4.1"

    monkeypatch.delenv("OPENAI_API_KEY")
    model = settings("model=openai", "model.name=gpt-4.1").model
    assert isinstance(model, OpenAIModel) and model.api_key is None


def test_every_secret_of_a_component_is_hidden_from_the_logs() -> None:
    settings(
        "model=chat",
        "model.name=m",
        "model.base_url=http://h/v1",
        "model.api_key=canary-of-the-key",
        "model.headers={X-Team: canary-of-a-header}",
    )

    assert "canary" not in logs.redact("they are canary-of-the-key and canary-of-a-header")


def test_the_docker_engine_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://elsewhere:2375")
    provider = settings("provider=docker").provider

    assert isinstance(provider, DockerProvider) and provider.host == "tcp://elsewhere:2375"


def test_values_that_hydras_grammar_does_not_take_are_taken_as_they_stand() -> None:
    found = settings(
        "model=chat", "model.name=org/model-7b:latest", "model.base_url=http://h:80/v1?a=b", "runner.output=/tmp/a b=c"
    )

    assert isinstance(found.model, ChatModel)
    assert found.model.base_url == "http://h:80/v1?a=b" and found.model.name == "org/model-7b:latest"
    assert found.runner.output == Path("/tmp/a b=c")


def test_fields_that_no_yaml_lists_can_be_set_with_or_without_plus() -> None:
    for override in ("agent.max_steps=3", "+agent.max_steps=3", "++agent.max_steps=3"):
        agent = settings(override).agent
        assert isinstance(agent, ToolLoop) and agent.max_steps == 3


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("model=scriptd", "there is no model 'scriptd'; did you mean 'scripted'?"),
        ("modle=scripted", "there is no setting 'modle'; did you mean 'model'?"),
        ("runer.limit=3", "there is no setting 'runer'; did you mean 'runner'?"),
        ("limit=3", "there is no setting 'limit'; did you mean 'runner.limit'?"),
        ("runner.limt=3", "runner is wrong:\n  limt: Extra inputs are not permitted (did you mean 'limit'?)"),
        (
            "agent.max_step=3",
            "agent is wrong:\n  max_step: Extra inputs are not permitted (did you mean 'max_steps'?)",
        ),
        ("runner.limit=0", "runner is wrong:\n  limit: Input should be greater than or equal to 1"),
        ("model=openai", "model.name is not set; add model.name=…"),
        ("counter", "'counter' is no setting; write name=value, such as environment=counter"),
        ("model.replies=a,b", "Ambiguous value for argument 'model.replies=a,b'; write a list as name=[a,b]"),
        ("model.replies=[a", "'model.replies=[a' is not well-formed; check its quotes and brackets"),
        ("model.name=${oc.env:NO_SUCH_VARIABLE}", "model.name: Environment variable 'NO_SUCH_VARIABLE' not found"),
        ("~model", "model has no _target_; choose one with model=NAME"),
        ("environment=", "environment= names none; write environment=NAME, such as environment=counter"),
        ("environment=[]", "environment= names none; write environment=NAME, such as environment=counter"),
        (
            "controller=localhost:8710",
            "settings is wrong:\n  controller: 'localhost:8710' is not an address that begins with http://",
        ),
        ("+nogroup/x=y", "there is no setting"),
        (
            "model=a/b",
            "there is no model/a 'b'; known: anthropic, azure, azure_chat, chat, litellm, local, openai, ",
        ),
        ("runner.output=${runner.missing}", "runner.output: Interpolation key 'runner.missing' not found"),
        ("hydra.nothing=1", "hydra"),
        ("agents.a/b=tool_loop", "'agents.a/b' is no name of a setting: it has letters, digits, _ and -"),
        ("agents.é=tool_loop", "'agents.é' is no name of a setting"),
        ("agents.=tool_loop", "'agents.' is no name of a setting"),
        ("=3", "'' is no name of a setting"),
        ("runner.params=" + "[" * 3000 + "]" * 3000, "runner.params: brackets in brackets too deep"),
    ],
)
def test_what_is_wrong_is_said_with_the_nearest_name(override: str, said: str) -> None:
    assert said in refusal(override)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ([], "model is wrong:\n  base_url is missing: the address of the API, such as http://127.0.0.1:8000/v1"),
        (["model.base_url=host:80/v1"], "model is wrong:\n  base_url: base_url must start with http:// or https://"),
    ],
)
def test_an_address_that_is_wrong_is_told_in_words_of_settings(more: list[str], said: str) -> None:
    with pytest.raises(ConfigError) as error:
        compose(["environment=counter", "model=chat", "model.name=m", *more])
    assert str(error.value) == said


@pytest.mark.parametrize("mistyped", ["enviroment", "environments"])
def test_a_mistyped_environment_is_no_missing_one(mistyped: str) -> None:
    with pytest.raises(ConfigError, match=f"there is no setting '{mistyped}'; did you mean 'environment'?"):
        compose([f"{mistyped}=counter"])


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("agent._target_=no.such.Agent", "agent._target_: cannot import 'no.such.Agent': No module named 'no'"),
        ("agent._target_=Agent", "agent._target_: cannot import 'Agent'"),
        ("agent._target_=gymbox.agents.Nothing", "agent._target_: cannot import 'gymbox.agents.Nothing'"),
        ("agent._target_=gymbox.models.scripted.ScriptedModel", "is no Agent"),
        ("model._target_=json.loads", "model._target_: json.loads is no Model"),
        ("provider._target_=gymbox.agents.tool_loop.ToolLoop", "is no sandbox provider"),
    ],
)
def test_a_target_must_be_a_component_of_its_kind(override: str, said: str) -> None:
    assert said in refusal(override)


def test_a_folder_of_ones_own_brings_classes_and_choices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_agents.py").write_text(
        "from gymbox.agents import Agent\nclass Mine(Agent):\n    size: int = 1\n    async def run(self, *a): ...\n"
    )
    folder = tmp_path / "my conf"
    (folder / "agent").mkdir(parents=True)
    (folder / "agent" / "mine.yaml").write_text("_target_: my_agents.Mine\nsize: 2\n")
    monkeypatch.syspath_prepend(tmp_path)

    found = compose(["environment=counter", "model=scripted", "agent=mine"], [folder])

    assert record(found.agent) == {"_target_": "my_agents.Mine", "size": 2}
    assert "there is no agent 'mne'; did you mean 'mine'?" in _refusal_with(folder, "agent=mne")


def _refusal_with(folder: Path, override: str) -> str:
    with pytest.raises(ConfigError) as caught:
        compose(["environment=counter", "model=scripted", override], [folder])
    return str(caught.value)


def test_a_config_dir_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--config-dir .*/none: there is no such folder"):
        compose(["environment=counter"], [tmp_path / "none"])


def test_composing_leaves_folder_files_and_logging_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    handlers = list(logging.getLogger().handlers)

    settings()

    assert list(tmp_path.iterdir()) == [] and Path(os.getcwd()) == tmp_path
    assert logging.getLogger().handlers == handlers


def test_the_record_of_settings_holds_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    found = settings(
        "model=openai",
        "model.name=m",
        "model.headers={X-Key: hidden1}",
        "agent.instructions='see http://me:hidden2@h/'",
    )

    told = str(found.record())
    assert "sk-secret" not in told and "hidden1" not in told and "hidden2" not in told
    assert found.record()["model"]["_target_"] == "gymbox.models.openai.OpenAIModel"
    assert found.record()["environment"] == ["counter"]


def test_passwords_in_addresses_are_hidden_wherever_they_stand() -> None:
    found = settings("model.replies=[[{type: message, content: 'http://a:b@c'}]]")

    assert found.record()["model"]["replies"] == [[{"type": "message", "content": "http://***@c"}]]


def test_settings_are_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        settings().controller = "http://elsewhere"


def test_pools_are_set_by_environment_and_recorded_where_there_are_some() -> None:
    found = settings("pools.counter.target=4", "pools.my-env={target: 1, ceiling: 2, decay: 5}")

    assert (found.pools["counter"].target, found.pools["counter"].most) == (4, 16)
    assert found.record()["pools"]["my-env"] == {"target": 1, "ceiling": 2, "decay": 5.0}
    assert "pools" not in settings().record()


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("pools.counter.target=-1", "target: Input should be greater than or equal to 0"),
        ("pools.counter.targte=1", "did you mean 'target'?"),
        ("pools.counter={target: 2, ceiling: 1}", "the ceiling (1) is below the target (2): raise it"),
    ],
)
def test_a_pool_that_cannot_be_is_refused(override: str, reason: str) -> None:
    assert reason in refusal(override)
