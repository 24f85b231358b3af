"""Plan: inputs made from rows by a template."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gymbox.environment import Environment
from gymbox.errors import ConfigError
from gymbox.plan import Plan
from gymbox.runner_settings import RunnerSettings

Make = Callable[..., Environment]


@pytest.fixture
def template(tmp_path: Path) -> Callable[[str], Path]:
    def make(text: str, name: str = "prompt.yaml") -> Path:
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return make


def asked(*environments: Environment, **settings: Any) -> list[Any]:
    with Plan(environments, RunnerSettings(**settings)) as plan:
        return [slot.row.fields["responses_create_params"] for slot in plan]


def refusal(*environments: Environment, **settings: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        asked(*environments, **settings)
    return str(caught.value)


def test_rows_without_input_get_theirs_from_the_template(environment: Make, template: Any) -> None:
    path = template("system: Be brief.\nuser: '{q} {{literally}}'\n")
    counter = environment(
        {"q": "why {this}?"}, {"q": "ü", "responses_create_params": {"temperature": 0.5, "input": []}}
    )

    first, second = asked(counter, prompt=str(path), params={"top_p": 1})

    system = {"role": "system", "content": "Be brief."}
    assert first == {"input": [system, {"role": "user", "content": "why {this}? {literally}"}], "top_p": 1}
    assert second["temperature"] == 0.5 and second["input"][1]["content"] == "ü {literally}"


def test_environments_may_have_templates_of_their_own(environment: Make, template: Any) -> None:
    first, second = environment({"q": "x"}, name="first"), environment({"q": "x"}, name="second")
    third = environment({"responses_create_params": {"input": "as it is"}}, name="third")
    prompts = {"first": template("user: one {q}", "a.yaml"), "second": template("user: two {q}", "b.yaml")}

    found = asked(first, second, third, prompt=prompts)

    assert [each["input"] for each in found] == [
        [{"role": "user", "content": "one x"}],
        [{"role": "user", "content": "two x"}],
        "as it is",
    ]


def test_without_a_template_a_row_without_input_is_told_of_it(environment: Make) -> None:
    told = refusal(environment({"q": "x", "responses_create_params": {}}))
    assert "input: missing or empty; put the messages for the model there, or have them made" in told
    assert "runner.prompt=FILE.yaml" in told


def test_every_row_that_does_not_fit_is_told_before_anything_starts(environment: Make, template: Any) -> None:
    rows = [{"q": "x"}, {"p": "x"}, {"q": None}, {"q": "x", "id": []}]
    told = refusal(environment(*rows), prompt=template("user: '{q}'"))
    assert "3 faults in the dataset" in told
    assert "example.jsonl:2: q: the template names it, the row has no such field" in told
    assert "example.jsonl:3: q: is null" in told and "example.jsonl:4: id: is a list" in told


def test_an_input_is_replaced_only_where_that_is_asked_for(environment: Make, template: Any) -> None:
    counter, path = environment({"q": "x", "responses_create_params": {"input": "y"}}), template("user: '{q}'")
    assert "runner.replace_input=true" in refusal(counter, prompt=path)
    [replaced] = asked(counter, prompt=path, replace_input=True)
    assert replaced["input"] == [{"role": "user", "content": "x"}]


@pytest.mark.parametrize("field", ["verifier_metadata[answer]", "gold_replies", "secret"])
def test_what_is_hidden_from_the_agent_cannot_be_in_its_prompt(environment: Make, template: Any, field: str) -> None:
    counter = environment({"q": "x", "secret": "s", "verifier_metadata": {"answer": "a"}, "gold_replies": []})
    (counter.folder / "environment.yaml").write_text("description: x\nhidden_fields: [secret]\n")
    told = refusal(Environment.load(counter.folder), prompt=template(f"user: '{{{field}}}'"))
    assert "is hidden from the agent, so it cannot be part of its prompt" in told


def test_the_templates_digest_is_among_the_inputs(environment: Make, template: Any) -> None:
    counter = environment({"q": "x"})

    def inputs(text: str) -> Any:
        with Plan([counter], RunnerSettings(prompt=template(text))) as plan:
            return json.loads(json.dumps(plan.inputs()))

    before, after = inputs("user: '{q}'"), inputs("user: '{q}!'")
    assert before["environments"]["counter"].pop("prompt") != after["environments"]["counter"].pop("prompt")
    assert before == after


def test_settings_with_templates_are_json_and_can_be_read_again() -> None:
    for prompt in ("a.yaml", {"counter": "a.yaml", "_default": "b.yaml"}):
        settings = RunnerSettings(prompt=prompt)
        assert settings.model_dump(mode="json")["prompt"] == prompt
        assert RunnerSettings.model_validate(settings.model_dump(mode="json")) == settings
