"""`gymbox export`: runs for experiment trackers, as tables, and as sets to train on."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from gymbox.cli import Commands
from gymbox.cli.options import AsJson, finite
from gymbox.cli.output import say, say_json
from gymbox.cli.readers import reader_of
from gymbox.errors import ConfigError
from gymbox.exports.conversations import Reasoning
from gymbox.exports.dpo import DpoForm, Pairing
from gymbox.exports.sft import Choose, SftForm

if TYPE_CHECKING:
    from gymbox.evaluation.rollouts import RunReader
    from gymbox.exports.training_rows import Exported

app = typer.Typer(
    cls=Commands,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Runs for experiment trackers, as tables, and as sets to train on.",
)

Runs = typer.Argument(metavar="RUN...", help="Folders of runs, or JSONL files of rollouts (NeMo Gym's, too).")
Output = typer.Option(..., "--output", "-o", help="A .jsonl or .parquet file.")
Force = typer.Option(False, "--force", help="Replace the output if it is there.")
Table = typer.Option(1_000, "--table", min=0, help="Rollouts that the table shows at most; 0: no table.")
Files = typer.Option(
    True, "--files/--no-files", help="Also rollouts, manifest and metrics as files; answers are in them."
)
Seed = typer.Option(0, "--seed", help="Of what is drawn at random.")
CutOff = typer.Option(False, "--cut-off", help="Also incomplete answers, which a limit has ended.")
Masked = typer.Option(False, "--masked", help="Also rollouts with mask_sample; not with tokens.")
Reasons = typer.Option(
    Reasoning.KEEP, "--reasoning", help="keep: in reasoning_content; think: as <think> before the text; drop."
)


@app.command()
def wandb(
    runs: list[Path] = Runs,
    project: str = typer.Option(None, "--project", "-p", envvar="WANDB_PROJECT", help="Made if there is none."),
    entity: str = typer.Option(None, "--entity", envvar="WANDB_ENTITY", help="User or team. Default: your own."),
    name: str = typer.Option(None, "--name", help="Of the run there. Default: the folder's."),
    group: str = typer.Option(None, "--group", help="Runs of one group are shown together."),
    tag: list[str] = typer.Option([], "--tag", help="May be repeated."),
    offline: bool = typer.Option(False, "--offline", help="Write files, which `wandb sync` uploads later."),
    output: Path = typer.Option(None, "--output", "-o", help="Folder for the client's files. Default: ./wandb."),
    timeout: float = typer.Option(30.0, "--timeout", min=1, help="Seconds that the server has to answer."),
    table: int = Table,
    files: bool = Files,
) -> None:
    """Make each run one of Weights & Biases, or update the one that an export before has made.

    \b
    gymbox export wandb runs/DIR --project evals
    gymbox export wandb runs/DIR --project evals --offline -o tracking

    The key is WANDB_API_KEY's or that of `wandb login`, the server WANDB_BASE_URL's.

    Exit code 1: the server does not answer. 2: it refuses, or nothing was sent.
    """
    from gymbox.exports.tracked_run import tracked_run
    from gymbox.exports.wandb_run import WandbPlace, export_wandb

    _one_name(name, runs)
    if not project:
        raise ConfigError("name the project with --project, or in WANDB_PROJECT")
    place = WandbPlace(project, entity, name, group, tuple(tag), "offline" if offline else None, output, timeout)
    for run in [tracked_run(path) for path in runs]:
        say(f"{run.name}: run {run.id}: {export_wandb(run, place, table=table, files=files)}")


@app.command()
def mlflow(
    runs: list[Path] = Runs,
    tracking_uri: str = typer.Option(
        None, "--tracking-uri", envvar="MLFLOW_TRACKING_URI", help="Address of the server."
    ),
    experiment: str = typer.Option(
        "gymbox", "--experiment", envvar="MLFLOW_EXPERIMENT_NAME", help="Made if there is none."
    ),
    name: str = typer.Option(None, "--name", help="Of the run there. Default: the folder's."),
    tag: list[str] = typer.Option([], "--tag", help="KEY=VALUE; may be repeated."),
    table: int = Table,
    files: bool = Files,
) -> None:
    """Make each run one of an MLflow tracking server, or update the one that an export before has made.

    \b
    gymbox export mlflow runs/DIR --tracking-uri http://127.0.0.1:5000 --experiment evals

    The token is MLFLOW_TRACKING_TOKEN's.

    Exit code 1: the server does not answer. 2: it refuses, or nothing was sent.
    """
    from gymbox.exports.mlflow_run import MlflowPlace, export_mlflow
    from gymbox.exports.tracked_run import tracked_run

    _one_name(name, runs)
    if not tracking_uri:
        raise ConfigError("name the server with --tracking-uri, or in MLFLOW_TRACKING_URI")
    tags = {}
    for one in tag:
        key, equals, value = one.partition("=")
        if not key or not equals:
            raise ConfigError(f"--tag {one}: write KEY=VALUE")
        tags[key] = value
    # the client's own is a matter of minutes, in which nothing is told
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    place = MlflowPlace(tracking_uri, experiment, name, tags)
    for run in [tracked_run(path) for path in runs]:
        say(f"{run.name}: run {run.id}: {export_mlflow(run, place, table=table, files=files)}")


@app.command()
def parquet(
    runs: list[Path] = Runs,
    output: Path = typer.Option(..., "--output", "-o", help="A .parquet file."),
    rows: bool = typer.Option(
        True, "--rows/--no-rows", help="With the rows' own fields, what only the verifier may see among them."
    ),
    force: bool = Force,
) -> None:
    """Write rollouts as a table, a row each, for pandas, DuckDB, `datasets` and others.

    \b
    gymbox export parquet runs/DIR -o rollouts.parquet
    """
    from gymbox.exports.rollout_table import export_parquet

    say(export_parquet(_readers(runs), output, rows=rows, force=force))


@app.command()
def datasets(
    runs: list[Path] = Runs,
    output: Path = typer.Option(..., "--output", "-o", help="A new folder."),
    license: str = typer.Option(None, "--license", help="Of the whole, by its SPDX name; an upload wants one."),
    rows: bool = typer.Option(
        False, "--rows/--no-rows", help="With the rows' own fields, what only the verifier may see among them."
    ),
) -> None:
    """Write rollouts as a folder with a card that `datasets.load_dataset` reads.

    \b
    gymbox export datasets runs/DIR --license Apache-2.0 -o rollouts
    gymbox dataset upload rollouts OWNER/NAME
    """
    from gymbox.exports.dataset_folder import export_folder

    say(export_folder(_readers(runs), output, rows=rows, license=license))


@app.command()
def sft(
    runs: list[Path] = Runs,
    output: Path = Output,
    form: SftForm = typer.Option(SftForm.MESSAGES, "--format", help="What a row holds; tokens need recorded ids."),
    min_reward: float = typer.Option(
        1.0, "--min-reward", callback=finite, help="A reward from which on a rollout is taken."
    ),
    per_task: int = typer.Option(None, "--per-task", min=1, help="At most so many rollouts of a task."),
    choose: Choose = typer.Option(Choose.BEST, "--choose", help="Which of a task's, where there are more."),
    dedup: bool = typer.Option(False, "--dedup", help="Leave out what is the same as an earlier rollout."),
    branches: bool = typer.Option(
        True, "--branches/--no-branches", help="Of tokens: a row for each branch of a history that was rewritten."
    ),
    reasoning: Reasoning = Reasons,
    cut_off: bool = CutOff,
    masked: bool = Masked,
    seed: int = Seed,
    force: bool = Force,
    as_json: bool = AsJson,
) -> None:
    """Write rollouts that went well as a set to fine-tune on, as TRL's SFTTrainer takes it.

    \b
    gymbox export sft runs/DIR -o sft.jsonl
    gymbox export sft runs/DIR --per-task 1 --format completion --reasoning drop -o best.parquet
    gymbox export sft runs/DIR --format tokens -o tokens.parquet

    messages: `messages`, `tools`. completion: `prompt`, `completion`, `tools`. tokens: `input_ids`, `labels`, which
    are -100 for all that the model did not sample. What is left out is counted by reason.
    """
    from gymbox.exports.sft import SftChoice, export_sft

    choice = SftChoice(form, min_reward, per_task, choose, seed, dedup, cut_off, masked, branches, reasoning)
    _tell(export_sft(_readers(runs), output, choice, force=force), as_json)


@app.command()
def dpo(
    runs: list[Path] = Runs,
    output: Path = Output,
    form: DpoForm = typer.Option(DpoForm.CHAT, "--format", help="What a row holds; tokens need recorded ids."),
    pairs: Pairing = typer.Option(Pairing.BEST_WORST, "--pairs", help="Which pairs of a prompt's rollouts are taken."),
    margin: float = typer.Option(
        0.0, "--margin", min=0, callback=finite, help="By how much the chosen's reward is higher at least."
    ),
    per_prompt: int = typer.Option(
        None, "--per-prompt", min=1, help="At most so many pairs of a prompt. Default: all; of random ones 1."
    ),
    reasoning: Reasoning = Reasons,
    cut_off: bool = CutOff,
    masked: bool = Masked,
    seed: int = Seed,
    force: bool = Force,
    as_json: bool = AsJson,
) -> None:
    """Write pairs of rollouts of the same prompt, the better and the worse, as TRL's DPOTrainer takes them.

    \b
    gymbox export dpo runs/DIR -o dpo.jsonl
    gymbox export dpo runs/A runs/B --pairs all --margin 0.5 --per-prompt 4 -o dpo.parquet

    chat: `prompt`, `chosen`, `rejected`, `tools`. tokens: `prompt_ids`, `chosen_ids`, `rejected_ids`, of rollouts with
    a single answer. What is left out is counted by reason.
    """
    from gymbox.exports.dpo import DpoChoice, export_dpo

    choice = DpoChoice(form, pairs, margin, per_prompt, seed, cut_off, masked, reasoning)
    _tell(export_dpo(_readers(runs), output, choice, force=force), as_json)


def _readers(runs: list[Path]) -> list[RunReader]:
    return [reader_of(run) for run in runs]


def _one_name(name: str | None, runs: list[Path]) -> None:
    if name and len(runs) > 1:
        raise ConfigError(f"--name {name}: {len(runs)} runs cannot all have it; export them one by one")


def _tell(exported: Exported, as_json: bool) -> None:
    if as_json:
        say_json(json.dumps(exported.as_json(), indent=2, ensure_ascii=False))
        return
    say(exported.written)
    left_out = exported.rollouts - exported.used
    say(f"from {exported.used} of {exported.rollouts} rollouts; {left_out} left out", nl=False)
    say(f": {exported.left_out}" if left_out else "")
    for reason, text in exported.left_out.examples.items():
        say(f"  {reason.value}, for one: {text[:300]}")
