"""Config: YAML groups and overrides, composed once by Hydra into one frozen `Settings`.

A component (agent, model, provider) is its own configuration: `_target_` names a frozen pydantic class, the other keys
are its fields. Nobody below the command line reads configuration.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import yaml
from gymbox_sandbox.lifecycle import ID_PATTERN, PoolSettings
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, ConfigDict, Field, InstanceOf, SecretStr, SkipValidation, ValidationError

from gymbox import logs
from gymbox.agents import Agent
from gymbox.environment import explain
from gymbox.errors import ConfigError, nearest
from gymbox.models import Model
from gymbox.providers import SandboxProvider
from gymbox.proxy import ProxyLimits
from gymbox.requests import URL_PATTERN
from gymbox.runner_settings import AGENT_NAME, RunnerSettings

SHIPPED = Path(__file__).parent / "conf"
GROUPS = ("agent", "model", "provider", "runner")
_PROVIDER_VERBS = ("open", "close", "prepare", "start", "stop", "list", "logs")
_NAMED = re.compile(r"(?:[+~]|hydra)[\w@/.:+\[\]-]*|[A-Za-z_][\w@:\[\]-]*(?:\.[\w@:\[\]-]+)*", re.ASCII)
_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]+(?=@)")


Tables = Callable[[type[BaseModel], str], list[str]]
Components = Callable[[dict[str, type[BaseModel]]], list[str]]


class Settings(BaseModel):
    """Everything that `gymbox run` was told."""

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)

    environment: tuple[str, ...] = Field(min_length=1)
    """Names of environments, or paths of their folders: `environment=counter,weather`, `environment=./mine`."""
    controller: str | None = Field(None, pattern=URL_PATTERN)
    """Address of a running controller; by default one is started in this process."""
    sessions: int | None = Field(None, ge=1, le=4096)
    """Tasks that may share a sandbox at once, each with an instance of its own, in place of what each manifest says.
    Only for environments whose tasks cannot harm one another; with `controller`, the manifests decide."""
    agent: InstanceOf[Agent]
    """The harness: `agent=tool_loop` or `agent=single_turn`, and its fields as `agent.NAME=…`."""
    agents: dict[Annotated[str, Field(pattern=AGENT_NAME)], InstanceOf[Agent]] = {}
    """Several in one run, each by a name: `agents.one=tool_loop agents.two=single_turn`, and their fields as
    `agents.one.NAME=…`. Which does a task, its row says (`agent_ref: {name: one}` or `agent: one`), else
    `runner.agent_of`, else it is `agent`; with `runner.cross_agents=true` each does all tasks."""
    model: InstanceOf[Model]
    """`model=local`, `openai`, `chat`, `azure`, `azure_chat`, `anthropic`, `litellm`, `replay` or `scripted`, and its
    fields as `model.NAME=…`."""
    judge: InstanceOf[Model] | None = None
    """What environments ask whose `verify` needs a judge: `judge=` takes what `model=` takes, and fields are set as
    `judge.NAME=…`. With `controller`, by default what its proxy serves as /models/judge."""
    models: dict[str, InstanceOf[Model]] = {}
    """For `gymbox serve model`, in the place of `model`: several, each by the name that callers ask for:
    `models.small=local models.big=openai`, and their fields as `models.big.NAME=…`. In a run, what the agent of that
    name asks in the place of `model`."""
    provider: Annotated[SandboxProvider, SkipValidation]
    """`provider=auto`, `docker` or `process`, and its fields as `provider.NAME=…`; unused with `controller`."""
    runner: RunnerSettings
    proxy: ProxyLimits = ProxyLimits()
    """What the proxy in this process lets through, as `proxy.NAME=…`; with `controller`, its own proxy decides."""
    pools: dict[Annotated[str, Field(pattern=ID_PATTERN)], PoolSettings] = {}
    """Started containers that wait for requests, by environment: `pools.counter.target=4`. In a run they are beside
    those of `runner.concurrency`; with `controller`, that one's own pools are used."""

    def record(self) -> dict[str, Any]:
        """All of it for a manifest; secrets are stars, and a provider that is not used is None."""
        return {
            "environment": list(self.environment),
            "controller": self.controller,
            "sessions": self.sessions,
            "agent": record(self.agent),
            "model": record(self.model),
            **{
                kind: {name: record(each) for name, each in named.items()}
                for kind, named in (("agents", self.agents), ("models", self.models))
                if named
            },
            "judge": self.judge and record(self.judge),
            "provider": None if self.controller else record(self.provider),
            "runner": self.runner.model_dump(mode="json"),
            "proxy": None if self.controller else self.proxy.model_dump(mode="json"),
            **({"pools": {name: each.model_dump() for name, each in self.pools.items()}} if self.pools else {}),
        }


def record(component: Any) -> dict[str, Any]:
    """A component's class and fields; secrets, and passwords in addresses, are stars."""
    fields = component.model_dump(mode="json")
    if fields.get("skills", ()) is None:
        del fields["skills"]
    return {"_target_": f"{type(component).__module__}.{type(component).__qualname__}", **_without_passwords(fields)}


def _without_passwords(value: Any) -> Any:
    if isinstance(value, str):
        return _CREDENTIALS.sub("***", value)
    if isinstance(value, list):
        return [_without_passwords(part) for part in value]
    if isinstance(value, dict):
        return {name: _without_passwords(part) for name, part in value.items()}
    return value


def compose(
    overrides: Sequence[str], config_dirs: Sequence[Path] = (), given: Mapping[str, Any] = MappingProxyType({})
) -> Settings:
    """The settings that the shipped configuration, that of `config_dirs` and `overrides` make together. Their secrets
    are hidden from the logs.

    Args:
        overrides: `group=choice` and `name.field=value`, as on the command line.
        config_dirs: folders with groups of one's own, such as `model/mine.yaml` for `model=mine`.
        given: parts of the settings that are there already, in the place of what is composed: components, or the
            fields of `runner` that win.

    Raises:
        ConfigError: what is wrong, with the nearest name where one is mistyped.
    """
    raw = _composed([_prepared(override) for override in overrides], config_dirs)
    raw |= {**given, "runner": {**(raw.get("runner") or {}), **given.get("runner", {})}}
    parts: dict[str, Any] = {
        "agent": component(raw.get("agent"), "agent", Agent),
        "agents": {name: component(each, f"agents.{name}", Agent) for name, each in (raw.get("agents") or {}).items()},
        "model": component(raw.get("model"), "model", Model),
        "judge": component(raw["judge"], "judge", Model) if raw.get("judge") else None,
        "models": {name: component(each, f"models.{name}", Model) for name, each in (raw.get("models") or {}).items()},
        "provider": component(raw.get("provider"), "provider", None),
        "runner": _validated(RunnerSettings, raw.get("runner") or {}, "runner"),
        "proxy": _validated(ProxyLimits, raw.get("proxy") or {}, "proxy"),
        "pools": {
            name: _validated(PoolSettings, fields or {}, f"pools.{name}")
            for name, fields in (raw.get("pools") or {}).items()
        },
    }
    for part in parts.values():
        for secret in values_in(part, SecretStr):
            logs.hide(secret.get_secret_value())
    return _validated(Settings, {**raw, **parts}, "settings")


def values_in[Kind](value: Any, kind: type[Kind]) -> Iterator[Kind]:
    """Every value of that kind, such as secrets or paths, in a component's fields, however deep."""
    if isinstance(value, kind):
        yield value
    elif isinstance(value, BaseModel):
        yield from values_in(dict(value), kind)
    elif isinstance(value, dict):
        yield from values_in(list(value.values()), kind)
    elif isinstance(value, list | tuple | set | frozenset):
        for part in value:
            yield from values_in(part, kind)


def component(raw: Any, name: str, kind: type[BaseModel] | None) -> Any:
    """The component that `raw` describes, a subclass of `kind`; without `kind`, a sandbox provider.

    Raises:
        ConfigError: `_target_` is missing, cannot be imported or is of another kind, or its fields are wrong.
    """
    if isinstance(raw, BaseModel) and _is_a(type(raw), kind):
        return raw
    if not isinstance(raw, dict) or "_target_" not in raw:
        raise ConfigError(f"{name} has no _target_; choose one with {name}=NAME")
    target, fields = str(raw["_target_"]), {key: value for key, value in raw.items() if key != "_target_"}
    found = _imported(target, name)
    wanted = kind.__name__ if kind else "sandbox provider"
    if not isinstance(found, type) or not issubclass(found, BaseModel) or not _is_a(found, kind):
        raise ConfigError(f"{name}._target_: {target} is no {wanted}; see the docs on bringing your own")
    return _validated(found, fields, name)


def _is_a(found: type, kind: type[BaseModel] | None) -> bool:
    if kind is not None:
        return issubclass(found, kind)
    return all(callable(getattr(found, verb, None)) for verb in _PROVIDER_VERBS)


def _imported(target: str, name: str) -> Any:
    module, _, attribute = target.rpartition(".")
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"{name}._target_: cannot import {target!r}: {error}") from error


def _validated[Found: BaseModel](kind: type[Found], fields: dict[str, Any], name: str) -> Found:
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        raise ConfigError(f"{name} is wrong:\n{explain(error, _names_at(kind, error))}") from error


def _names_at(kind: type[BaseModel], error: ValidationError) -> list[str]:
    """The fields that are known where the error has found others."""
    known: list[str] = []
    for fault in error.errors(include_url=False):
        inner = kind.model_fields.get(str(fault["loc"][0])) if len(fault["loc"]) > 1 else None
        if fault["type"] == "extra_forbidden" and inner is not None and isinstance(inner.annotation, type):
            known += getattr(inner.annotation, "model_fields", {})
    return known or list(kind.model_fields)


def _prepared(override: str) -> str:
    """An override as Hydra wants it: fields may be set though no YAML lists them (their class knows them), and what
    Hydra's grammar does not take as it stands is quoted."""
    name, equals, value = override.partition("=")
    if not equals:
        if override.startswith("~"):
            return override
        raise ConfigError(f"{override!r} is no setting; write name=value, such as environment={override}")
    if not _NAMED.fullmatch(name):
        raise ConfigError(
            f"{name!r:.80} is no name of a setting: it has letters, digits, _ and -, and dots between parts"
        )
    if name in ("environment", "++environment", "+environment"):
        names = [name.strip(" \"'") for name in value.strip("[]").split(",") if name.strip()]
        if not names:
            raise ConfigError("environment= names none; write environment=NAME, such as environment=counter")
        return f"++environment=[{','.join(map(_quoted, names))}]"
    if name == "judge":
        name = "model@judge"  # the group of models, for another part of the settings
    elif (named := re.fullmatch(r"(agent|model)s\.[\w-]+", name)) and not value.startswith("{"):
        name = f"+{named[1]}@{name}"  # the same, by a name
    elif name not in GROUPS and not name.startswith(("+", "~", "hydra.")):
        name = f"++{name}"
    try:
        OverridesParser.create().parse_override(f"{name}={value}")
    except RecursionError:
        raise ConfigError(f"{name.strip('+')}: brackets in brackets too deep") from None
    except (OverrideParseException, HydraException):
        if value.startswith(("[", "{", "'", '"')):
            raise ConfigError(f"{override!r} is not well-formed; check its quotes and brackets") from None
        return f"{name}={_quoted(value)}"
    return f"{name}={value}"


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _nearest_setting(name: str, known: list[str]) -> str:
    """As `nearest`; a field whose section was left out is told with it."""
    for section, field in Settings.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel) and name in kind.model_fields:
            return f"did you mean '{section}.{name}'?"
    return nearest(name, known)


def _composed(overrides: list[str], config_dirs: Sequence[Path]) -> dict[str, Any]:
    for folder in config_dirs:
        if not folder.is_dir():
            raise ConfigError(f"--config-dir {folder}: there is no such folder")
    paths = ",".join(_quoted(f"file://{folder.resolve()}") for folder in config_dirs)
    try:
        with initialize_config_dir(config_dir=str(SHIPPED), version_base="1.3"):
            found = hydra_compose("config", [f"hydra.searchpath=[{paths}]", *overrides])
        known = list(Settings.model_fields)
        for name in found:
            if name not in known:  # before what is missing: the mistyped name is why
                raise ConfigError(f"there is no setting {name!r}; {_nearest_setting(str(name), known)}")
        missing = sorted(OmegaConf.missing_keys(found))
        if missing:
            raise ConfigError("\n".join(f"{name} is not set; add {name}=…" for name in missing))
        return dict(OmegaConf.to_container(found, resolve=True))  # type: ignore[arg-type]
    except MissingConfigException as error:
        raise ConfigError(_explain_choice(error)) from error
    except OmegaConfBaseException as error:
        reason = str(error).splitlines()[0].removeprefix("KeyError raised while resolving interpolation: ")
        raise ConfigError(f"{error.full_key}: {reason.strip('"')}") from error
    except HydraException as error:
        hint = "; write a list as name=[a,b]" if "Ambiguous" in str(error) else ""
        raise ConfigError(f"{str(error).splitlines()[0].replace('++', '')}{hint}") from error


def _explain_choice(error: MissingConfigException) -> str:
    group, _, choice = str(error.missing_cfg_file).rpartition("/")
    return f"there is no {group} {choice!r}; {nearest(choice, list(error.options or []))}"


def choices(group: str) -> list[str]:
    """Names of what comes with gymbox for a group."""
    return sorted(path.stem for path in (SHIPPED / group).glob("*.yaml"))


def shipped(group: str) -> dict[str, type[BaseModel]]:
    """The choices of a group that come with gymbox, each with its class."""
    found = {}
    for name in choices(group):
        text = (SHIPPED / group / f"{name}.yaml").read_text()
        found[name] = _imported(yaml.safe_load(text)["_target_"], group)
    return found


def reference(tables: Tables, components: Components) -> list[str]:
    """The configuration's page of the docs; `tables` writes the fields of a class, `components` those of several."""
    lines = tables(Settings, "Settings")
    for group in ("agent", "model", "provider"):
        lines += [f"## `{group}=`", "", *components(shipped(group))]
    return lines
