"""An evaluation by Inspect in sandboxes of gymbox; `python inspect_eval.py FOLDER PROVIDER [IMAGE]` prints its log."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from gymbox.sdk.inspect_provider import GymboxConfig
from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.scorer import Score, accuracy, scorer
from inspect_ai.solver import solver
from inspect_ai.util import SandboxEnvironmentSpec, sandbox


@solver
def works() -> Any:
    """Answers with what the sample's files and its setup have made, and with how one gets into its sandbox."""

    async def solve(state: Any, generate: Any) -> Any:
        done = await sandbox().exec(["sh", "-c", "cat seen; cat > answer; echo $KIND"], input="42")
        connection = await sandbox().connection()
        state.metadata = {"said": done.stdout, "command": connection.command}
        return state

    return solve


@scorer(metrics=[accuracy()])
def answered() -> Any:
    async def score(state: Any, target: Any) -> Score:
        return Score(value="C" if await sandbox().read_file("answer") == target.text else "I")

    return score


def main(folder: Path, provider: str, image: str | None = None) -> None:
    config = GymboxConfig(image=image, provider=provider, env={"KIND": "eval"}, limits={"memory_mb": 300})
    (folder / "own.yaml").write_text(f"provider: {provider}\nenv: {{KIND: file}}\n")
    told = []
    for spec in (SandboxEnvironmentSpec("gymbox", config), ("gymbox", str(folder / "own.yaml"))):
        setup = "#!/bin/sh\ncat data/x.txt > seen"
        samples = [
            Sample(input=name, target=name, files={"data/x.txt": "hello "}, setup=setup) for name in ("42", "7")
        ]
        task = Task(dataset=samples, solver=works(), scorer=answered(), sandbox=spec)
        (log,) = eval(task, model="mockllm/model", display="none", log_dir=str(folder))
        assert log.status == "success", log.error
        scores = [sample.scores["answered"].value for sample in log.samples]
        told.append({"scores": scores, "samples": [sample.metadata for sample in log.samples]})
    print(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
