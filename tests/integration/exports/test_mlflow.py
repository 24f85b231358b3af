"""Runs on an MLflow tracking server, a real one, over HTTP."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from gymbox.cli import main

from tests.integration.exports.conftest import Export
from tests.unit.exports.conftest import answered, said
from tests.unit.exports.conftest import line as unanswered

Run = Callable[..., Path]
mlflow = pytest.importorskip("mlflow")
PATIENCE = 120


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the server."""
    return tmp_path_factory.mktemp("mlflow")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[str]:
    port = _free_port()
    address = f"http://127.0.0.1:{port}"
    quiet = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", f"sqlite:///{folder / 'db'}"]
            + ["--artifacts-destination", str(folder / "artifacts"), "--host", "127.0.0.1", "--port", str(port)]
            + ["--workers", "1"],
            cwd=folder,
            env={**os.environ, **quiet},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            _until_it_answers(address, process, folder / "log")
            yield address
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _free_port() -> int:
    import socket

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _until_it_answers(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"{address}/health", timeout=5):
                return
        except OSError:
            assert process.poll() is None, log.read_text()[-3000:]
            time.sleep(0.5)
    raise AssertionError(f"no answer: {log.read_text()[-3000:]}")


@pytest.fixture
def export(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Export:
    """Run `gymbox export` in this process, which has the client imported already."""
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")

    def ended(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            main(["export", *map(str, arguments)])
        said = capsys.readouterr()
        return subprocess.CompletedProcess([], int(caught.value.code or 0), said.out, said.err)

    return ended


@pytest.fixture
def client(server: str) -> Any:
    return mlflow.MlflowClient(tracking_uri=server)


@pytest.fixture
def ended(run: Run) -> Path:
    lines = [answered("a", 0, 1.0, said("four")), answered("b", 0, 0.0, said("x")), answered("b", 1, None)]
    return run(*lines, repeats=2, dataset="d" * 64)


def runs_in(client: Any, experiment: str) -> list[Any]:
    found = client.get_experiment_by_name(experiment)
    return list(client.search_runs([found.experiment_id]))


def test_a_run_holds_figures_digests_and_rollouts(
    ended: Path, export: Export, server: str, client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = export("mlflow", ended, "--tracking-uri", server, "--experiment", "evals", "--tag", "team=ours")
    assert done.returncode == 0, done.stderr
    manifest = json.loads((ended / "manifest.json").read_text())
    [found] = runs_in(client, "evals")
    assert found.info.run_id in done.stdout and found.info.run_name == "run" and found.info.status == "FINISHED"
    metrics, params, tags = found.data.metrics, found.data.params, found.data.tags
    assert metrics["mean/reward"] == 0.5 and metrics["counter/errors/agent_failed"] == 1
    assert metrics["counter/pass_at_1"] == 0.5 and metrics["pass_all_1"] == 0.5
    assert params["environments.counter.dataset"] == "d" * 64 and params["runner.repeats"] == "2"
    assert tags["gymbox.run"] == manifest["run"] and tags["team"] == "ours"
    assert tags["gymbox.version.gymbox"] == manifest["versions"]["gymbox"]
    names = {each.path for each in client.list_artifacts(found.info.run_id)}
    assert names == {"rollouts.jsonl", "manifest.json", "metrics.json", "rollouts.json"}
    fetched = client.download_artifacts(found.info.run_id, "rollouts.jsonl", str(tmp_path))
    assert Path(fetched).read_bytes() == (ended / "rollouts.jsonl").read_bytes()
    monkeypatch.setattr(mlflow.tracking._tracking_service.utils, "_tracking_uri", server)
    frame = client.load_table(found.info.experiment_id, "rollouts.json", [found.info.run_id])
    assert len(frame) == 3 and frame["answer"].dropna().tolist() == ["four", "x"]


def test_a_second_export_and_one_after_a_resume_update_the_same_run(
    ended: Path, export: Export, server: str, client: Any
) -> None:
    where = ("--tracking-uri", server, "--experiment", "again")
    for _ in range(2):
        done = export("mlflow", ended, *where)
        assert done.returncode == 0, done.stderr
    [found] = runs_in(client, "again")
    assert len(client.get_metric_history(found.info.run_id, "mean/reward")) == 1

    with (ended / "rollouts.jsonl").open("a") as file:
        file.write(json.dumps(answered("a", 1, 1.0, said("good"))) + "\n")
    manifest = json.loads((ended / "manifest.json").read_text())
    resumed = manifest | {"starts": 2, "ended_at": "2100-01-01T00:00:00Z", "status": "interrupted"}
    (ended / "manifest.json").write_text(json.dumps(resumed))
    assert export("mlflow", ended, *where, "--name", "mine").returncode == 0
    [after] = runs_in(client, "again")
    assert after.info.run_id == found.info.run_id and after.info.run_name == "mine"
    assert after.data.metrics["mean/reward"] == pytest.approx(2 / 3) and after.info.status == "KILLED"
    assert len(client.get_metric_history(found.info.run_id, "mean/reward")) == 2


def test_many_params_long_ones_and_strange_names_are_told_as_mlflow_takes_them(
    ended: Path, export: Export, server: str, client: Any
) -> None:
    manifest = json.loads((ended / "manifest.json").read_text())
    manifest["inputs"]["agent"] = {"instructions": "long " * 2_000, **{f"field {n}": n for n in range(150)}, "a(b)": 1}
    (ended / "manifest.json").write_text(json.dumps(manifest))
    done = export("mlflow", ended, "--tracking-uri", server, "--experiment", "odd", "--no-files", "--table", "0")
    assert done.returncode == 0, done.stderr
    [found] = runs_in(client, "odd")
    assert len(found.data.params["agent.instructions"]) == 6_000 and found.data.params["agent.field 149"] == "149"
    assert found.data.params["agent.a_b_"] == "1"
    assert client.list_artifacts(found.info.run_id) == []


def test_what_a_server_refuses_and_one_that_is_not_there_are_told_of(
    run: Run, export: Export, server: str, client: Any, refusing: str
) -> None:
    folder = run(unanswered("a", 0, 1.0), name="other")
    client.delete_experiment(client.create_experiment("gone"))
    done = export("mlflow", folder, "--tracking-uri", server, "--experiment", "gone")
    assert done.returncode == 2 and "is deleted" in done.stderr
    done = export("mlflow", folder, "--tracking-uri", refusing)
    assert done.returncode == 2 and "refuses this" in done.stderr and "MLFLOW_TRACKING_TOKEN" in done.stderr
    done = export("mlflow", folder, "--tracking-uri", "http://127.0.0.1:9")
    assert done.returncode == 1 and "cannot be reached" in done.stderr and "Traceback" not in done.stderr
    done = export("mlflow", folder, "--tracking-uri", "nonsense://x")
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr


def test_artifacts_that_the_server_cannot_keep_are_told_of(
    ended: Path, export: Export, server: str, folder: Path
) -> None:
    aside = (folder / "artifacts").rename(folder / "aside") if (folder / "artifacts").exists() else None
    (folder / "artifacts").write_text("a file where the folder was")
    try:
        done = export("mlflow", ended, "--tracking-uri", server, "--experiment", "full")
    finally:
        (folder / "artifacts").unlink()
        if aside:
            aside.rename(folder / "artifacts")
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
