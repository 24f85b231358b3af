"""Write docs/reference from the code: command line, configuration, environment.yaml, REST API, results.

`write_reference.py` rewrites what stands between the `generated` markers of each page; `--check` only says whether it
would change anything (exit code 1). What stands outside the markers is written by hand.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = ROOT / "docs" / "reference"
MARKERS = re.compile(r"(<!-- generated:start -->\n).*?(<!-- generated:end -->)", re.DOTALL)


def cell(text: str) -> str:
    """Text for a cell of a table: on one line, with bars escaped."""
    return " ".join(text.split()).replace("|", "\\|")


# --- settings: fields, types, defaults, and the docstrings beneath them


def documented(model: type[BaseModel]) -> list[tuple[str, str, str, str]]:
    """`(name, type, default, text)` of each field that `model` or a base of it declares, as written in the source. A
    field that is declared again stands where it stood, with its base's text unless it brings one."""
    rows: dict[str, tuple[str, str, str, str]] = {}
    for owner in reversed(model.__mro__):
        if owner is BaseModel or not issubclass(owner, BaseModel) or owner.__pydantic_generic_metadata__["origin"]:
            continue  # the last: a generic model with its parameter, made at run time, whose own class comes too
        body = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0]
        assert isinstance(body, ast.ClassDef)
        for node, below in zip(body.body, [*body.body[1:], None], strict=False):
            if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
                continue
            name = node.target.id
            if name not in model.model_fields:
                continue
            text = text_of(below) or (rows[name][3] if name in rows else "")
            rows[name] = (name, plain_type(node.annotation, owner.__module__), default_of(model, name), text)
    return list(rows.values())


def text_of(node: ast.stmt | None) -> str:
    """The text beneath a field or a member, where there is one."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return str(node.value.value)
    return ""


def plain_type(node: ast.expr, module: str) -> str:
    """An annotation as a user of it thinks of it: without validators, and named types that only add some."""

    class Plain(ast.NodeTransformer):
        def visit_Subscript(self, found: ast.Subscript) -> ast.AST:
            name = getattr(found.value, "id", "")
            if name == "Annotated" and isinstance(found.slice, ast.Tuple):
                return self.visit(found.slice.elts[0])  # type: ignore[no-any-return]
            return self.visit(found.slice) if name == "InstanceOf" else self.generic_visit(found)

        def visit_Name(self, found: ast.Name) -> ast.AST:
            named: Any = getattr(sys.modules[module], found.id, None)
            if get_origin(named) is not Annotated:
                return found
            alternatives = get_args(named.__origin__) if get_origin(named.__origin__) is Union else (named,)
            return ast.Name(" | ".join(map(name_of, alternatives)))

    def name_of(named: Any) -> str:
        plain = named.__origin__ if get_origin(named) is Annotated else named
        if isinstance(origin := get_origin(plain), type):
            return f"{origin.__name__}[{', '.join(map(name_of, get_args(plain)))}]"
        return plain.__name__ if isinstance(plain, type) else str(plain).removeprefix("typing.")

    return ast.unparse(Plain().visit(node))


def default_of(model: type[BaseModel], name: str) -> str:
    field = model.model_fields[name]
    if field.is_required():
        return "the folder's" if (model.__name__, name) == ("Manifest", "name") else "required"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, BaseModel):
        return "see below"
    if value is None:
        return ""
    written = json.dumps(value) if isinstance(value, bool | list | dict) or value == "" else str(value)
    return f"`{written}`"


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """Every model that a field's type names."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from models_in(inner)


def settings_tables(model: type[BaseModel], title: str, *, level: int = 2) -> list[str]:
    """A table for `model`, and one for each model among its fields."""
    summary = inspect.getdoc(model) or ""
    lines = [f"{'#' * level} {title}", "", *summary.splitlines(), ""]
    lines += ["| setting | type | default | meaning |", "|---|---|---|---|"]
    inner: list[str] = []
    for name, kind, default, text in documented(model):
        lines.append(f"| `{name}` | `{cell(kind)}` | {cell(default)} | {cell(text)} |")
        for found in models_in(model.model_fields[name].annotation):
            if found.__module__.startswith("gymbox") and not inspect.isabstract(found):
                inner += settings_tables(found, f"`{name}`", level=level + 1)
    return [*lines, "", *inner]


def component_tables(choices: dict[str, type[BaseModel]]) -> list[str]:
    lines: list[str] = []
    for name, one in choices.items():
        lines += settings_tables(one, f"`{name}`: `{one.__module__}.{one.__qualname__}`", level=3)
    return lines


# --- pages


def environment_page() -> list[str]:
    from gymbox.environment import Manifest

    return settings_tables(Manifest, "`environment.yaml`")


def configuration_page() -> list[str]:
    from gymbox import config

    return config.reference(settings_tables, component_tables)


def help_of(command: Any) -> list[str]:
    """A command's help; what it marks as not to be wrapped becomes a block of code."""
    text = inspect.cleandoc(command.help or "")
    return re.sub(r"\x08\n(.*?)(\n\n|$)", r"```\n\1\n```\2", text, flags=re.DOTALL).splitlines()


def cli_page() -> list[str]:
    import click
    from gymbox.cli import app, beside_run
    from typer.main import get_command

    lines: list[str] = []

    def describe(command: Any, words: list[str]) -> None:
        context = click.Context(command, info_name=" ".join(words))
        if hasattr(command, "list_commands"):
            for name in command.list_commands(context):
                describe(command.get_command(context, name), [*words, name])
                if [*words, name] == ["gymbox", "run"]:
                    describe(beside_run(), [*words, name])
            return
        usage = " ".join([*words, *command.collect_usage_pieces(context)])
        lines.extend([f"## `{' '.join(words)}`", "", *help_of(command), ""])
        lines.extend(["```", usage, "```", ""])
        rows = [found for found in command.params if getattr(found, "help", None) or found.param_type_name == "option"]
        if rows:
            lines.extend(["| argument | default | meaning |", "|---|---|---|"])
        for found in rows:
            names = ", ".join(f"`{name}`" for name in [*found.opts, *found.secondary_opts])
            default = f"`{found.default}`" if found.default and not callable(found.default) else ""
            lines.append(f"| {names} | {cell(default)} | {cell(getattr(found, 'help', '') or '')} |")
        lines.append("")

    describe(get_command(app), ["gymbox"])
    return lines


def rest_page() -> list[str]:
    from typing import cast

    from gymbox.controller.app import controller_app
    from gymbox.controller.sandboxes import Sandboxes
    from gymbox.environment import Catalog
    from gymbox.runs.app import StartedRuns, add_started_runs

    lines: list[str] = ["## Controller", "", "| route | what it does | answers |", "|---|---|---|"]
    app = controller_app(cast(Sandboxes, None), Catalog([]))  # its routes are told, none is called
    add_started_runs(app, cast(StartedRuns, None))
    document = app.openapi()
    for path, methods in document["paths"].items():
        for method, found in methods.items():
            codes = ", ".join(sorted(found.get("responses", {})))
            text = found.get("description") or found.get("summary", "")
            lines.append(f"| `{method.upper()} {path}` | {cell(text)} | {codes} |")
    from gymbox_sandbox import wire

    table = (wire.__doc__ or "").split("::", 1)[-1]
    lines += [
        "",
        "## Sandbox, through the proxy",
        "",
        "```",
        *textwrap.dedent(_indented(table)).splitlines(),
        "```",
        "",
    ]
    for model in (wire.ExecRequest, wire.ExecResult, *background_models()):
        lines += body_table(model)
    return lines


def body_table(model: type[BaseModel]) -> list[str]:
    """The fields of a request or an answer; those that it has from another are told there."""
    lines = [f"### `{model.__name__}`", ""]
    if "__doc__" in vars(model) and model.__doc__:
        lines += [cell(model.__doc__), ""]
    if (base := model.__base__) is not None and base.__name__.startswith("Exec"):
        lines += [f"It has the fields of `{base.__name__}`, and:", ""]
    lines += ["| field | type | default | meaning |", "|---|---|---|---|"]
    for name, kind, default, text in documented(model):
        if name in model.__annotations__:
            lines.append(f"| `{name}` | `{cell(kind)}` | {cell(default)} | {cell(text)} |")
    return [*lines, ""]


def background_models() -> list[type[BaseModel]]:
    from gymbox_sandbox import background

    return [
        background.JobRequest,
        background.JobView,
        background.JobOutput,
        background.ShellRequest,
        background.ShellView,
        background.ShellRun,
        background.ShellResult,
    ]


def _indented(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if line.startswith("    "))


def results_page() -> list[str]:
    from gymbox.errors import RETRYABLE, ErrorKind, Stage
    from gymbox.rollout import RolloutResult
    from gymbox.run_manifest import RunManifest
    from gymbox_sandbox.problems import KINDS

    lines = settings_tables(RolloutResult, "A line of `rollouts.jsonl`")
    lines += ["## Stages", "", ", ".join(f"`{stage.value}`" for stage in Stage), ""]
    lines += ["## Kinds of errors", "", "| kind | a retry can help | meaning |", "|---|---|---|"]
    body = ast.parse(inspect.getsource(ErrorKind)).body[0].body  # type: ignore[attr-defined]
    texts = {
        ast.literal_eval(node.value): text_of(below)
        for node, below in zip(body, [*body[1:], None], strict=True)
        if isinstance(node, ast.Assign)
    }
    lines += [f"| `{kind}` | {'yes' if kind in RETRYABLE else 'no'} | {cell(texts[kind])} |" for kind in ErrorKind]
    lines += ["", "## Problems on the wire", "", "| kind | status |", "|---|---|"]
    lines += [f"| `{kind}` | {problem.status} |" for kind, problem in KINDS.items()]
    return [*lines, "", *settings_tables(RunManifest, "`manifest.json`")]


PAGES = {
    "cli.md": cli_page,
    "configuration.md": configuration_page,
    "environment.md": environment_page,
    "rest.md": rest_page,
    "results.md": results_page,
}


def main() -> int:
    stale = []
    for name, page in PAGES.items():
        path = REFERENCE / name
        before = path.read_text()
        text = "\n".join(page()).rstrip() + "\n"
        after = MARKERS.sub(lambda found, text=text: f"{found[1]}\n{text}\n{found[2]}", before)  # type: ignore[misc]
        if after != before:
            stale.append(name)
            if "--check" not in sys.argv:
                path.write_text(after)
    for name in stale:
        print(f"{name}: {'is stale; run scripts/write_reference.py' if '--check' in sys.argv else 'written'}")
    return int(bool(stale) and "--check" in sys.argv)


if __name__ == "__main__":
    sys.exit(main())
