"""`gymbox dataset`: check, shape, fill in, split, put together, describe, fetch and publish rows."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from gymbox.cli import Commands
from gymbox.cli.options import AsJson
from gymbox.cli.output import say, say_json
from gymbox.cli.places import environment_folders
from gymbox.datasets.collate import OnDuplicates
from gymbox.datasets.convert import Shape
from gymbox.datasets.overlap import NGRAM, THRESHOLD
from gymbox.errors import ConfigError

if TYPE_CHECKING:
    from gymbox.datasets.shapes import Shaping
    from gymbox.datasets.sources import Source

app = typer.Typer(
    cls=Commands,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Check, shape, split, put together, describe, fetch and publish the rows of environments.",
)

SOURCES = "a .jsonl, .csv, .tsv or .parquet file, a folder of Hugging Face `datasets`, or hf:OWNER/NAME"
SourceName = typer.Argument(metavar="SOURCE", help=f"{SOURCES[0].upper()}{SOURCES[1:]}.")
HfSplit = typer.Option(None, "--split", help="Of a Hugging Face dataset: which split.")
HfConfig = typer.Option(None, "--config", help="Of a Hugging Face dataset: which configuration.")
Revision = typer.Option(None, "--revision", help="Of the Hub: branch, tag or commit.")
JsonFields = typer.Option([], "--json-field", help="A CSV or Parquet column whose text is JSON; may be repeated.")
PromptField = typer.Option(None, "--prompt-field", help="The field whose text becomes the user's message.")
IdField = typer.Option(None, "--id-field", help="The field that becomes `id`.")
Hide = typer.Option([], "--hide", help="A field to move into verifier_metadata, which agents do not see; repeatable.")
Drop = typer.Option([], "--drop", help="A field to leave out; may be repeated.")
Gold = typer.Option(False, "--gold", help="Take the answer that ends Chat messages for the gold reply.")
HiddenFields = typer.Option([], "--hidden-field", help="As the environment's manifest has it; may be repeated.")
Force = typer.Option(False, "--force", help="Replace the output if it is there.")


@app.command()
def validate(
    files: list[Path] = typer.Argument(None, metavar="[FILE]...", help="JSONL files of task rows."),
    environment: list[str] = typer.Option([], "--environment", "-e", help="An environment, whose dataset is meant."),
    folder: list[Path] = typer.Option([], "--folder", "-f", help="Where environments are; may be repeated."),
    hidden_field: list[str] = HiddenFields,
    template: Path = typer.Option(
        None, "--template", "-t", help="As runner.prompt: YAML that makes each row's input from its fields."
    ),
    overwrite: bool = typer.Option(
        False, "--overwrite", help="With --template: also of rows that have an input, as runner.replace_input."
    ),
    require_license: bool = typer.Option(False, "--require-license", help="It is a fault if no license is told."),
    as_json: bool = AsJson,
) -> None:
    """Check every row of JSONL files as a run would, and print their digests.

    \b
    gymbox dataset validate tasks.jsonl
    gymbox dataset validate questions.jsonl --template prompt.yaml

    Exit code 1: there are faults; each is told with line, field, reason and remedy.
    """
    from gymbox_sandbox.tasks import HIDDEN

    from gymbox.datasets.card import license_of
    from gymbox.datasets.tasks import checked, told
    from gymbox.datasets.templates import Prompt
    from gymbox.environment import Catalog
    from gymbox.faults import Fault

    wanted = [(path, tuple(hidden_field)) for path in files or []]
    catalog = Catalog(folder or environment_folders())
    for name in environment:
        found = catalog.find(name)
        wanted.append((found.dataset, (*found.manifest.hidden_fields, *hidden_field)))
    if not wanted:
        raise ConfigError("name a file of rows, or an environment with --environment")
    if overwrite and template is None:
        raise ConfigError("--overwrite says what --template replaces, and there is no --template")
    reports, wrong = [], 0
    for path, hidden in wanted:
        if path.suffix.lower() not in (".jsonl", ".ndjson") and path.is_file():
            raise ConfigError(f"{path}: rows that can be run are in .jsonl files; see: gymbox dataset convert")
        prompt = Prompt.load(template, {*HIDDEN, *hidden}, replace=overwrite) if template else None
        index = checked(path, hidden, prompt)
        license = license_of(path)
        if require_license and license is None:
            remedy = "write a README.md with `license: …` between two lines of --- beside it"
            index.faults.add([Fault(path, 1, "(license)", "is not told", remedy)])
        wrong += index.faults.count
        reports.append(
            {
                "path": str(path),
                "rows": len(index.offsets),
                "sha256": index.sha256,
                "template": prompt.sha256 if prompt else None,
                "license": license.name if license else None,
                "faults": index.faults.count,
                "first": [
                    {"line": fault.line, "field": fault.field, "reason": fault.reason, "remedy": fault.remedy}
                    for fault in index.faults.shown
                ],
            }
        )
        if not as_json:
            said = f"license {license.name}" if license else "license unknown"
            filled = f", filled into {template}" if template else ""
            say(f"{path}: {len(index.offsets)} rows{filled}, sha256 {index.sha256}, {said}")
            if index.faults.count:
                say(told(index.faults), err=True)
    if as_json:
        say_json(json.dumps(reports, indent=2))
    if wrong:
        raise typer.Exit(1)


@app.command()
def convert(
    source: str = SourceName,
    output: Path = typer.Option(..., "--output", "-o", help="A .jsonl or .parquet file."),
    to: Shape = typer.Option(Shape.TASKS, "--to", help="What the rows become."),
    split: str | None = HfSplit,
    config: str | None = HfConfig,
    revision: str | None = Revision,
    json_field: list[str] = JsonFields,
    prompt_field: str | None = PromptField,
    id_field: str | None = IdField,
    hide: list[str] = Hide,
    drop: list[str] = Drop,
    gold: bool = Gold,
    hidden_field: list[str] = HiddenFields,
    force: bool = Force,
) -> None:
    """Make task rows of Chat rows, CSV, Parquet or a Hugging Face dataset; or Chat rows of task rows.

    \b
    gymbox dataset convert questions.csv --prompt-field question --hide answer -o tasks.jsonl
    gymbox dataset convert hf:OWNER/NAME --split test -o tasks.jsonl
    gymbox dataset convert tasks.jsonl --to chat -o chat.parquet
    """
    from gymbox.datasets.convert import convert as converted

    say(
        converted(
            _source(source, split, config, revision, json_field),
            output,
            shape=to,
            shaping=_shaping(prompt_field, id_field, hide, drop, gold),
            hidden_fields=tuple(hidden_field),
            force=force,
        )
    )


@app.command()
def render(
    source: str = SourceName,
    template: Path = typer.Option(..., "--template", "-t", help="YAML with `user`, and `system` if you like."),
    output: Path = typer.Option(..., "--output", "-o", help="A .jsonl file."),
    split: str | None = HfSplit,
    config: str | None = HfConfig,
    revision: str | None = Revision,
    json_field: list[str] = JsonFields,
    hide: list[str] = typer.Option(
        [], "--hide", help="A field to move into verifier_metadata afterwards; repeatable."
    ),
    hidden_field: list[str] = HiddenFields,
    overwrite: bool = typer.Option(False, "--overwrite", help="Also rows that have an input, which is lost."),
    force: bool = Force,
) -> None:
    """Fill each row's fields into a template, which becomes its input."""
    from gymbox.datasets.shapes import Shaping
    from gymbox.datasets.tasks import write_tasks
    from gymbox.datasets.templates import Template

    prompt, shaping = Template.load(template), Shaping(hide=hide)

    def change(fields: dict[str, Any]) -> dict[str, Any]:
        return shaping.task(prompt.rendered(fields, overwrite=overwrite))

    found = _source(source, split, config, revision, json_field)
    say(write_tasks([found], change, output, hidden_fields=hidden_field, force=force))


@app.command("split")
def split_(
    source: str = SourceName,
    output: Path = typer.Option(..., "--output", "-o", help="A new folder, for NAME.jsonl of each split."),
    into: list[str] = typer.Option(
        ["train=0.9", "validation=0.1"], "--into", help="NAME=SHARE of a split, which add up to 1; repeat it for each."
    ),
    seed: int = typer.Option(0, "--seed", help="Another seed deals the rows out in another way."),
    by: str | None = typer.Option(None, "--by", help="Rows with the same value of this field stay together."),
    stratify: str | None = typer.Option(None, "--stratify", help="Each split gets its share of each value of it."),
) -> None:
    """Deal rows out to splits. The same rows and seed give the same bytes; rows that are the same stay together."""
    from gymbox.datasets.split import Splitting, write_splits

    shares: dict[str, float] = {}
    for one in into:
        name, _, share = one.partition("=")
        try:
            if name in shares:
                raise ConfigError(f"--into {one}: the split {name!r} is there already")
            shares[name] = float(share)
        except ValueError:
            raise ConfigError(f"--into {one}: write NAME=SHARE, such as train=0.9") from None
    for written in write_splits(_source(source), Splitting(shares, seed, by, stratify), output):
        say(written)


@app.command()
def collate(
    sources: list[str] = typer.Argument(metavar="[SPLIT=]SOURCE...", help=f"Each {SOURCES}; SPLIT is `train`."),
    output: Path = typer.Option(..., "--output", "-o", help="A new folder."),
    agent: str | None = typer.Option(None, "--agent", help="The agent of rows that name none (agent_ref)."),
    repeats: int = typer.Option(1, "--repeats", help="How often each row is written; runs have runner.repeats."),
    duplicates: OnDuplicates = typer.Option(
        OnDuplicates.KEEP, "--duplicates", help="What becomes of a row that is the same as an earlier one."
    ),
    license: str | None = typer.Option(None, "--license", help="Of the whole, by its SPDX name."),
    json_field: list[str] = JsonFields,
    prompt_field: str | None = PromptField,
    id_field: str | None = IdField,
    hide: list[str] = Hide,
    drop: list[str] = Drop,
    gold: bool = Gold,
    hidden_field: list[str] = HiddenFields,
) -> None:
    """Put rows together by split, with statistics, a card with license and digests, and a check for contamination.

    \b
    gymbox dataset collate train=a.jsonl train=b.csv validation=c.jsonl --agent tool_loop -o dataset
    """
    from gymbox.datasets.collate import Collation
    from gymbox.datasets.collate import collate as collated

    parts: dict[str, list[Source]] = {}
    for one in sources:
        split, equals, name = one.partition("=")
        if not equals or not split.replace("-", "_").isidentifier():
            split, name = "train", one
        parts.setdefault(split, []).append(_source(name, json_fields=json_field))
    shaping = _shaping(prompt_field, id_field, hide, drop, gold)
    collation = Collation(shaping, agent, repeats, duplicates, license, tuple(hidden_field))
    collected = collated(parts, collation, output)
    for written in collected.splits:
        left_out = collected.dropped[written.path.stem]
        say(f"{written}{f', {left_out} duplicates left out' if left_out else ''}")
    say(f"{output}: license {collected.license}")
    for overlap in collected.contamination:
        say(
            f"{Path(overlap.evaluated).stem} by {Path(overlap.reference).stem}: "
            f"{overlap.contaminated} of {overlap.rows} rows contaminated"
        )


@app.command()
def stats(
    sources: list[str] = typer.Argument(metavar="SOURCE...", help=f"Each {SOURCES}."),
    ngram: int = typer.Option(NGRAM, "--ngram", min=1, help="Words of an n-gram."),
    threshold: float = typer.Option(THRESHOLD, "--threshold", min=0, max=1, help="Share of a row's n-grams."),
    fail: bool = typer.Option(False, "--fail-if-contaminated", help="Exit with code 1 if a row is."),
    as_json: bool = AsJson,
) -> None:
    """Describe rows: fields, messages, tools, lengths, duplicates, license; and what one source gives away of another.

    Each source is judged by those before it, so name the training set first. A row is contaminated if its prompt
    stands in the other, normalised, or if at least the threshold's share of its n-grams of words does.
    """
    from gymbox.datasets.card import license_of
    from gymbox.datasets.overlap import contamination
    from gymbox.datasets.sources import HUB
    from gymbox.datasets.statistics import statistics_of
    from gymbox.datasets.tasks import told
    from gymbox.faults import Faults

    faults = Faults()
    found = [_source(name) for name in sources]
    about: dict[str, Any] = {}
    for source in found:
        license = None if source.name.startswith(HUB) else license_of(source.path)
        about[source.name] = {
            "license": license.name if license else None,
            **statistics_of(source, faults).as_json(),
        }
    if faults.count:
        raise ConfigError(f"there is what cannot be read, {told(faults)}")
    overlaps = [
        contamination(later, earlier, ngram=ngram, threshold=threshold)
        for at, later in enumerate(found)
        for earlier in found[:at]
    ]
    if as_json:
        report = {"sources": about, "contamination": [overlap.as_json() for overlap in overlaps]}
        say_json(json.dumps(report, indent=2, ensure_ascii=False))
    else:
        for name, one in about.items():
            say(f"{name}: {one['rows']} rows")
            for line in _described(one):
                say(f"  {line}")
        for overlap in overlaps:
            say(
                f"{overlap.evaluated} by {overlap.reference}: "
                f"{overlap.contaminated} of {overlap.rows} rows contaminated "
                f"({overlap.prompts} prompts the same, {overlap.overlapping} with at least {threshold:.0%} of their "
                f"{ngram}-grams, {overlap.too_short} too short for one)"
            )
            for line_number, share in overlap.first:
                say(f"  {overlap.evaluated}:{line_number}: {share:.0%}")
    if fail and any(overlap.contaminated for overlap in overlaps):
        raise typer.Exit(1)


@app.command()
def download(
    repository: str = typer.Argument(metavar="OWNER/NAME", help="A dataset of the Hugging Face Hub."),
    output: Path = typer.Option(..., "--output", "-o", help="A new folder; with --file, a file."),
    file: str | None = typer.Option(None, "--file", help="Only this file of it."),
    revision: str | None = Revision,
    force: bool = Force,
) -> None:
    """Fetch a dataset's files from the Hugging Face Hub; HF_TOKEN is its key, HF_ENDPOINT its address."""
    from gymbox.datasets.files import digest_of
    from gymbox.datasets.hub import download as downloaded

    commit = downloaded(repository, output, file=file, revision=revision, force=force)
    say(f"{repository} at commit {commit}")
    for path in [output] if output.is_file() else sorted(path for path in output.rglob("*") if path.is_file()):
        say(f"{path}: sha256 {digest_of(path)}")


@app.command()
def upload(
    path: Path = typer.Argument(help="A file, or a folder such as `collate` makes."),
    repository: str = typer.Argument(metavar="OWNER/NAME", help="A dataset of the Hugging Face Hub."),
    file: str | None = typer.Option(None, "--file", help="Name of a single file there; its own if left out."),
    revision: str | None = typer.Option(None, "--revision", help="Branch to commit to."),
    public: bool = typer.Option(False, "--public", help="A dataset that is made now can be seen by everyone."),
    create_pr: bool = typer.Option(False, "--create-pr", help="Make a pull request instead."),
    message: str | None = typer.Option(None, "--message", "-m", help="Of the commit."),
) -> None:
    """Publish rows on the Hugging Face Hub, once they are checked and their license is told; HF_TOKEN is its key."""
    from gymbox.datasets.hub import upload as uploaded

    say(
        uploaded(
            path,
            repository,
            file=file,
            revision=revision,
            private=not public,
            create_pr=create_pr,
            message=message,
        )
    )


def _source(
    name: str,
    split: str | None = None,
    config: str | None = None,
    revision: str | None = None,
    json_fields: Iterable[str] = (),
) -> Source:
    from gymbox.datasets.sources import Source

    return Source(name, split, config, revision, tuple(json_fields))


def _shaping(prompt_field: str | None, id_field: str | None, hide: list[str], drop: list[str], gold: bool) -> Shaping:
    from gymbox.datasets.shapes import Shaping

    return Shaping(prompt_field, id_field, tuple(hide), tuple(drop), gold)


def _described(about: dict[str, Any]) -> Iterable[str]:
    """Statistics as lines for people."""
    yield f"license: {about['license'] or 'unknown'}"
    for name, field in about["fields"].items():
        kinds = ", ".join(f"{kind} {count}" for kind, count in field["kinds"].items())
        yield f"field {name}: in {field['rows']} rows ({kinds})"
    for name in ("roles", "tools", "agents"):
        if about[name]:
            yield f"{name}: {', '.join(f'{key} {count}' for key, count in about[name].items())}"
    for name in ("messages", "tools_per_row", "prompt_characters", "prompt_words"):
        if spread := about[name]:
            yield f"{name.replace('_', ' ')}: {', '.join(f'{key} {value:g}' for key, value in spread.items())}"
    for kind, same in about["duplicates"].items():
        yield f"same as an earlier row ({kind}): {same['rows']}"
        yield from (f"  {place} = {earlier}" for place, earlier in same["first"])
