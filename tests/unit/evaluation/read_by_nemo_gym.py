"""Run by the Python of a venv that has NeMo Gym: has its code read files in its layout; prints what it makes of them.

python read_by_nemo_gym.py ROLLOUTS.jsonl
"""

import json
import sys
from pathlib import Path

from nemo_gym.reward_profile import RewardProfiler, compute_aggregate_metrics
from nemo_gym.rollout_collection import RolloutCollectionConfig, RolloutCollectionHelper


def rows_of(path):
    with path.open() as file:
        return [json.loads(line) for line in file]


output = Path(sys.argv[1])
config = RolloutCollectionConfig(input_jsonl_fpath="unused", output_jsonl_fpath=str(output))
rows, results = rows_of(config.materialized_jsonl_fpath), rows_of(output)
profiler = RewardProfiler()
by_agent = {}
for result in sorted(results, key=lambda each: (each["_ng_task_index"], each["_ng_rollout_index"])):
    usage = {"response": {"usage": result["response"]["usage"]}} if (result["response"] or {}).get("usage") else {}
    heavy = ("response", "responses_create_params")
    stripped = {name: value for name, value in result.items() if name not in heavy} | usage
    by_agent.setdefault(result["agent_ref"]["name"], []).append(stripped)
groups, agents = profiler.profile_from_data(rows, results, allow_partial_rollouts=True)
left, *_ = RolloutCollectionHelper()._load_from_cache(config)
print(
    json.dumps(
        {
            "aggregates": {name: compute_aggregate_metrics(each).model_dump() for name, each in by_agent.items()},
            "completion": profiler.profile_completion_summary(rows, results),
            "tasks": [[group["_ng_task_index"], group["mean/reward"], group["num_rollouts"]] for group in groups],
            "agents": [agent["agent_ref"]["name"] for agent in agents],
            "left": [[row["_ng_task_index"], row["_ng_rollout_index"]] for row in left],
        }
    ).replace("\n", ""),
    file=sys.stderr,
)
