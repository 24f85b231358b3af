"""`gymbox show`: one rollout of a run, to be read by people."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import typer

from gymbox.cli.output import say
from gymbox.errors import ConfigError, nearest
from gymbox.printable import printable
from gymbox.results import ROLLOUTS

app = typer.Typer(add_completion=False, rich_markup_mode=None)

LONGEST_LINE = 4000
"""Characters."""


@app.command()
def show(
    folder: Path = typer.Argument(metavar="DIR", help="Folder of the run."),
    task: str = typer.Argument("", metavar="TASK", help="Id of a task or of a rollout, or a kind of error."),
    calls: bool = typer.Option(False, "--calls", help="Its recorded model calls instead; see runner.capture."),
) -> None:
    """Show one rollout of a run: what was asked, each call with its result, the answers, and the reward or error.

    \b
    gymbox show runs/DIR
    gymbox show runs/DIR counter-3
    gymbox show runs/DIR agent_failed
    gymbox show runs/DIR --calls counter-3
    """
    record = find(folder, task)
    try:
        lines = list(calls_told(folder, record) if calls else told(record))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{folder / ROLLOUTS}: the line of {record.get('rollout_id') or 'a rollout'} is damaged, so it cannot be "
            f"shown: {type(error).__name__}: {error}"
        ) from error
    for line in lines:
        say(line)


def find(folder: Path, wanted: str) -> dict[str, Any]:
    """The first line of the run in `folder` whose task or rollout has the id `wanted`, or whose error is of that kind;
    `""` takes any.

    Raises:
        ConfigError: there is none, or no run can be read there.
    """
    from gymbox.evaluation.line_shape import check_shape

    path, tasks = folder / ROLLOUTS, []
    try:
        with path.open("rb") as file:
            for line in file:
                record: dict[str, Any] = json.loads(line)
                check_shape(record)
                kind = (record["error"] or {}).get("kind")
                if not wanted or wanted in (record["task_id"], record["rollout_id"], kind):
                    return record
                tasks.append(str(record["task_id"] or record["rollout_id"]))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}; give the folder of a run") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigError(f"{path}:{len(tasks) + 1} is no line of a run: {error}") from error
    if not wanted:
        raise ConfigError(f"{path} has no rollouts yet")
    raise ConfigError(f"{path} has no task, rollout or error {wanted!r}; {nearest(wanted, sorted({*tasks}))}")


def told(record: dict[str, Any]) -> Iterator[str]:
    """A line of `rollouts.jsonl` as lines to read, which can do nothing to a terminal."""
    from gymbox_sandbox.responses import Response, ResponsesParams

    yield from _said("rollout", str(record["rollout_id"]))
    yield from _said("task", str(record["task_id"]))
    if agent := (record.get("agent_ref") or {}).get("name"):
        yield from _said("agent", str(agent))
    params = ResponsesParams.model_validate(record["responses_create_params"])
    if params.instructions:
        yield from _said("instructions", params.instructions)
    response = Response.model_validate(record["response"] or {})
    items = [*params.items, *response.output]
    beside = numbered(items)
    for item in items:
        yield from _item(item, beside.get(getattr(item, "call_id", "")))
    if record["error"]:
        error = record["error"]
        yield from _said("error", f"{error['kind']} ({error['stage']}): {error['detail']}")
        if error.get("logs"):
            yield from _said("its log", error["logs"])
    else:
        yield from _said("reward", str(record["reward"]))
    if reason := ((record["response"] or {}).get("metadata") or {}).get("stop_reason"):
        yield from _said("agent ended", str(reason))
    for name in ("reward_components", "metrics"):
        if record.get(name):
            figures = ", ".join(f"{key} {value}" for key, value in record[name].items())
            yield from _said(name.replace("_", " "), figures)
    yield from _said("seconds", ", ".join(f"{stage} {spent:.2f}" for stage, spent in record["timings"].items()))


def calls_told(folder: Path, record: dict[str, Any]) -> Iterator[str]:
    """The recorded model calls of a line of `rollouts.jsonl`, and how they hang together, as lines to read.

    Raises:
        ConfigError: none of this run, or of this rollout, are recorded.
    """
    from gymbox.models.cassettes import recorded_calls
    from gymbox.models.trajectories import rebuilt

    mine = (record["rollout_id"], record.get("sandbox"))
    found = sorted((call for call in recorded_calls(folder) if call.rollout in mine), key=lambda call: call.call)
    if not found:
        raise ConfigError(f"no model call of rollout {record['rollout_id']} is recorded in {folder}")
    for call in found:
        spent = call.usage
        figures = [
            f"{call.dialect}{' (streamed)' if call.stream else ''}",
            f"{call.seconds:.2f} s",
            f"{spent.input_tokens} + {spent.output_tokens} tokens" if spent else "",
            f"cost {call.cost:.6g}" if call.cost is not None else "",
            f"{len(call.tries)} tries" if len(call.tries) > 1 else "",
            "cancelled" if call.cancelled else "",
        ]
        yield from _said(f"call {call.call}", ", ".join(filter(None, figures)))
        if call.error:
            yield from _said("error", str(call.error.get("detail") or call.error))
    made = rebuilt(found)
    for branch in made.trajectories:
        yield from _said(f"{branch.kind} branch", f"calls {', '.join(map(str, branch.calls))}")
    if made.mask_reason:
        yield from _said("not to train on", made.mask_reason)


def numbered(items: Sequence[Any]) -> dict[str, int]:
    """The calls that had no result yet when another was made, or that were made then, by call id: counted from 1, and
    anew once all have theirs."""
    from gymbox_sandbox.responses import FunctionCall, FunctionCallOutput

    found: dict[str, int] = {}
    unanswered: set[str] = set()
    batch: list[str] = []
    for item in items:
        if isinstance(item, FunctionCall):
            batch = [*batch, item.call_id] if unanswered else [item.call_id]
            unanswered.add(item.call_id)
            if len(batch) > 1:
                found |= {id: number for number, id in enumerate(batch, 1)}
        elif isinstance(item, FunctionCallOutput):
            unanswered.discard(item.call_id)
    return found


def _item(item: Any, number: int | None) -> Iterator[str]:
    """What happened, by its type; of a type that is not known, all of it. `number`: of a call among several."""
    from gymbox_sandbox.responses import FunctionCall, FunctionCallOutput, Message, Reasoning

    which = "" if number is None else f" {number}"
    if isinstance(item, Message):
        yield from _said(item.role, item.text or json.dumps(item.content))
    elif isinstance(item, FunctionCall):
        yield from _said(f"call{which}", f"{item.name} {item.arguments}")
    elif isinstance(item, FunctionCallOutput):
        output = item.output if isinstance(item.output, str) else json.dumps(item.output)
        yield from _said(f"result{which}", output)
    elif isinstance(item, Reasoning):
        yield from _said("reasoning", "\n".join(str(part.get("text", "")) for part in item.summary))
    else:
        yield from _said(item.type, json.dumps(item.dump()))


def _said(what: str, text: str) -> Iterator[str]:
    # not splitlines: what else it takes for the end of a line is shown as an escape
    for number, line in enumerate(text.rstrip("\n").split("\n")):
        yield f"{'' if number else printable(what, 17):<18}{printable(line, LONGEST_LINE)}".rstrip()
