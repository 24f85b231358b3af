"""Hub: datasets of the Hugging Face Hub, fetched whole or published.

By the Hub's own client, which knows its HF_TOKEN and HF_ENDPOINT.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gymbox.datasets.card import CARD, front_matter, license_of
from gymbox.datasets.files import new_file, new_folder
from gymbox.datasets.sources import needed
from gymbox.datasets.tasks import checked, told
from gymbox.errors import ConfigError, first_line


def download(
    repository: str,
    output: Path,
    *,
    file: str | None = None,
    revision: str | None = None,
    endpoint: str | None = None,
    force: bool = False,
) -> str:
    """Fetch a dataset's files into a new folder, or one of them to a file; the commit that they are of.

    Raises:
        ConfigError: it is not there, may not be read, or the Hub does not answer; nothing is left half written.
    """
    hub = needed("huggingface_hub")
    api = hub.HfApi(endpoint=endpoint)
    what = f"{repository} at {revision or 'main'}"
    with _translated(what):
        commit = str(api.dataset_info(repository, revision=revision).sha)
    if file is None:
        with new_folder(output) as beside, _translated(what):
            api.snapshot_download(repository, repo_type="dataset", revision=commit, local_dir=beside)
            shutil.rmtree(beside / ".cache", ignore_errors=True)  # the client's own notes
        return commit
    # into a folder of its own, since the client names the file as the Hub does
    with new_file(output, force=force) as beside:
        fetched = beside.with_name(f"{beside.name}.fetched")
        try:
            with _translated(what):
                got = api.hf_hub_download(repository, file, repo_type="dataset", revision=commit, local_dir=fetched)
            Path(got).replace(beside)
        finally:
            shutil.rmtree(fetched, ignore_errors=True)
    return commit


def upload(
    path: Path,
    repository: str,
    *,
    file: str | None = None,
    revision: str | None = None,
    private: bool = True,
    create_pr: bool = False,
    message: str | None = None,
    endpoint: str | None = None,
) -> str:
    """Publish a file or folder as a commit of a dataset, which is made if there is none; the address of the commit.

    Args:
        file: the name in the repository of a single file; None: its own.
        private: whether a dataset that is made now is private.

    Raises:
        ConfigError: rows of a JSONL file are wrong, no license is told, or the Hub refuses.
    """
    hub = needed("huggingface_hub")
    if not path.exists():
        raise ConfigError(f"{path}: there is no such file or folder")
    for rows in sorted(path.glob("*.jsonl")) if path.is_dir() else [path] if path.suffix == ".jsonl" else []:
        if (faults := checked(rows).faults).count:
            raise ConfigError(f"{path} is not uploaded, for it has {told(faults)}")
    licensed = front_matter(path / CARD).get("license") if path.is_dir() else license_of(path)
    if not licensed:
        raise ConfigError(
            f"{path}: its license is not known; write a {CARD} with `license: …` between two lines of --- beside it "
            "(`gymbox dataset collate` does)"
        )
    api = hub.HfApi(endpoint=endpoint)
    with _translated(repository):
        api.create_repo(repository, repo_type="dataset", private=private, exist_ok=True)
        about: dict[str, Any] = {
            "repo_id": repository,
            "repo_type": "dataset",
            "revision": revision,
            "create_pr": create_pr,
            "commit_message": message or f"Upload {path.name}",
        }
        if path.is_dir():
            commit = api.upload_folder(folder_path=path, **about)
        else:
            commit = api.upload_file(path_or_fileobj=path, path_in_repo=file or path.name, **about)
    return str(commit.pr_url or commit.commit_url)


@contextmanager
def _translated(what: str) -> Iterator[None]:
    errors = needed("huggingface_hub.errors")
    try:
        yield
    except (errors.HfHubHTTPError, errors.LocalEntryNotFoundError, errors.HFValidationError) as error:
        hint = "check the name, --revision, and HF_TOKEN (`hf auth login`)"
        raise ConfigError(f"{what}: the Hub says: {first_line(error)}; {hint}") from error
    except Exception as error:
        # the client's own HTTP library differs from version to version
        if not isinstance(error, OSError) and not type(error).__module__.startswith("httpx"):
            raise
        raise ConfigError(
            f"{what}: the Hub does not answer: {first_line(error)}; check the network, and HF_ENDPOINT"
        ) from error
