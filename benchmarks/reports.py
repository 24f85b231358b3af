"""Reports: how large the page of 10,000 rollouts is, and how soon its table can be used in Chromium."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

from gymbox.setup_chromium import chromium, ensure_chromium
from report import Figure, finish, median, within

ROOT = Path(__file__).parents[1]
GYMBOX = str(ROOT / ".venv/bin/gymbox")
ROLLOUTS, REPEATS = 10_000, 4
OPENINGS = 5
ENVIRONMENTS = ("airline", "retail", "library")
KINDS = ("agent_timed_out", "model_rate_limited", "sandbox_exited", "verify_failed", "oom_killed")
TOOLS = ("find_customer", "list_orders", "get_order", "change_address", "refund", "search_catalogue", "send_message")
SYSTEM = (
    "You are a support agent. You may look things up and change them with the tools, one step after the other. "
    "Check who the customer is before you change anything. Never tell of orders of others. Refund only what was paid, "
    "and only within thirty days. When all is done, say in one or two sentences what you did. "
)
SYLLABLES = re.findall("..", "barentolishomarkentavidoselumpracornifegalosturimedperconda")


class Prose:
    """Words as often as in a language (Zipf's law), so that they pack about as badly as what models write."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        drawn = ("".join(self.chance.choices(SYLLABLES, k=self.chance.randint(1, 4))) for _ in range(6000))
        self.words = sorted(set(drawn))
        self.chance.shuffle(self.words)
        self.weights = list(accumulate(1 / (rank + 3) for rank in range(len(self.words))))

    def text(self, words: int) -> str:
        """About so many words, as sentences."""
        drawn = self.chance.choices(self.words, cum_weights=self.weights, k=words)
        for place in range(0, words, 11):
            drawn[place] = (". " if place else "") + drawn[place].capitalize()
        return " ".join(drawn).replace(" . ", ". ") + "."


def tools() -> list[dict[str, Any]]:
    fields = {name: {"type": "string", "description": f"The {name}."} for name in ("customer", "order", "reason")}
    parameters = {"type": "object", "properties": fields, "required": ["customer"], "additionalProperties": False}
    told = "Does what its name says and returns the record as JSON."
    return [{"type": "function", "name": name, "description": told, "parameters": parameters} for name in TOOLS]


def output(prose: Prose, steps: int) -> Iterator[dict[str, Any]]:
    chance = prose.chance
    for step in range(steps):
        id = f"call_{chance.getrandbits(48):012x}"
        yield {"type": "reasoning", "summary": [{"type": "summary_text", "text": prose.text(chance.randint(20, 70))}]}
        asked = {"customer": f"C-{chance.getrandbits(24)}", "order": f"#{chance.getrandbits(20)}"}
        name = TOOLS[step % len(TOOLS)]
        yield {"type": "function_call", "call_id": id, "name": name, "arguments": json.dumps(asked)}
        items = [
            {"sku": f"{chance.getrandbits(32):08x}", "price": chance.randint(1, 90_000) / 100, "name": prose.text(3)}
            for _ in range(chance.randint(1, 5))
        ]
        found = json.dumps({"order": asked["order"], "items": items, "note": prose.text(12)})
        failed = chance.random() < 0.06
        yield {"type": "function_call_output", "call_id": id, "output": "Error: no such order" if failed else found}
    content = [{"type": "output_text", "text": prose.text(chance.randint(20, 60)), "annotations": []}]
    yield {"type": "message", "role": "assistant", "content": content}


def lines(rollouts: int, repeats: int, seed: int = 7) -> Iterator[dict[str, Any]]:
    """Lines as `gymbox run` writes them: several turns, calls of tools, some failures, tasks of different hardness."""
    prose, offered = Prose(1), tools()
    prose.chance.seed(seed)
    chance, now = prose.chance, 1_780_000_000.0
    asked = [prose.text(chance.randint(25, 60)) for _ in range(rollouts // repeats)]
    ease = [chance.betavariate(1.4, 1.1) for _ in asked]
    for number in range(rollouts):
        task, repeat = divmod(number, repeats)
        steps = chance.randint(2, 6)
        spent = {"provision": chance.uniform(0.3, 0.6), "reset": 0.01, "agent": steps * chance.gammavariate(3, 1.1)}
        spent["verify"] = chance.uniform(0.02, 0.4)
        read, wrote = 900 + steps * chance.randint(300, 900), steps * chance.randint(40, 260)
        usage = {"input_tokens": read, "output_tokens": wrote}
        kind = chance.choice(KINDS) if chance.random() < 0.04 else None
        done = chance.random() < ease[task]
        form = round(chance.uniform(0.6, 1), 2)
        response = {"id": f"resp_{number}", "object": "response", "model": "model-a", "usage": usage}
        response |= {"metadata": {"stop_reason": "completed"}, "output": list(output(prose, steps))}
        error = {"stage": "agent", "kind": kind, "detail": prose.text(12), "retryable": True, "logs": prose.text(30)}
        yield {
            "id": f"task-{task:05}",
            "responses_create_params": {
                "input": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": asked[task]}],
                "tools": offered,
            },
            "verifier_metadata": {"expected": {"refund": chance.randint(1, 90_000) / 100, "closed": True}},
            "_ng_task_index": task,
            "_ng_rollout_index": repeat,
            "rollout_id": f"5eedc0de-{ENVIRONMENTS[task % 3]}-{task}-{repeat}",
            "task_id": f"task-{task:05}",
            "environment": ENVIRONMENTS[task % 3],
            "reward": None if kind else (1.0 if done else round(chance.choice([0, 0, 0, 0.25, 0.5]) * form, 3)),
            "reward_components": {} if kind else {"outcome": float(done), "form": form},
            "metrics": {} if kind else {"steps": float(steps)},
            "error": error if kind else None,
            "sandbox": f"5eedc0de-{task}-{repeat}",
            "began": round(now + number * 0.35, 3),
            "timings": {name: round(value, 6) for name, value in (spent | {"total": sum(spent.values())}).items()},
            "response": None if kind and chance.random() < 0.5 else response,
            "usage": usage,
            "calls": {"count": steps + 1, "cost": round(read * 2e-6 + wrote * 8e-6, 6)},
            "attempts": 1,
            "failed_attempts": [],
        }


def a_run(folder: Path, rollouts: int = ROLLOUTS, repeats: int = REPEATS, seed: int = 7) -> Path:
    folder.mkdir()
    with (folder / "rollouts.jsonl").open("w") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines(rollouts, repeats, seed))
    return folder


def written(run: Path) -> tuple[float, float]:
    """Seconds that the command takes, and the most memory of its process (MiB)."""
    began = time.perf_counter()
    process = subprocess.Popen([GYMBOX, "eval", "report", str(run)], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"gymbox eval report failed ({status})")
    return time.perf_counter() - began, used.ru_maxrss / 1024


def openings(page: Path) -> tuple[dict[str, list[float]], bool]:
    """Seconds until the table can be used, and of what is done then, each time in a new Chromium; and whether
    trajectories had no room."""
    from playwright.sync_api import sync_playwright

    found: dict[str, list[float]] = {"table": [], "whole": [], "filter": [], "rollout": [], "search": []}
    options = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    with sync_playwright() as playwright:
        for _ in range(OPENINGS):
            browser = playwright.chromium.launch(executable_path=chromium(), args=options)
            tab = browser.new_page(viewport={"width": 1280, "height": 900})

            def until(name: str, condition: str, began: float, tab: Any = tab) -> None:
                tab.wait_for_function(condition, polling=5, timeout=60_000)
                found[name].append(time.perf_counter() - began)

            began = time.perf_counter()
            tab.goto(page.as_uri(), wait_until="commit")
            until("table", "() => document.querySelectorAll('tr[data-at]').length > 5", began)
            until("whole", "() => document.readyState == 'complete'", began)
            began = time.perf_counter()
            tab.fill("#search", "task-02499")
            until("filter", "() => document.querySelectorAll('tr[data-at]').length == 1", began)
            began = time.perf_counter()
            tab.locator("tr[data-at]").evaluate("(row) => row.click()")  # no driver that first scrolls
            until("rollout", "() => document.querySelectorAll('.conversation .step').length > 3", began)
            tab.keyboard.press("Escape")
            began = time.perf_counter()
            tab.fill("#search", "no such text anywhere")
            tab.keyboard.press("Enter")
            until("search", "() => document.querySelector('#count').textContent.includes('whose')", began)
            missing = "had no room" in tab.inner_text("#notices")
            browser.close()
    return found, missing


def main() -> None:
    setup = ensure_chromium()
    if not setup.ready:
        sys.exit(str(setup))
    with tempfile.TemporaryDirectory(prefix="gymbox-bench-") as name:
        run = a_run(Path(name) / "run")
        raw = (run / "rollouts.jsonl").stat().st_size / 1e6
        seconds, memory = written(run)
        page = run / "report.html"
        size = page.stat().st_size / 1e6
        found, missing = openings(page)
    figures = [
        within(2, f"{ROLLOUTS} rollouts: until the table can be used", median(found["table"]), "s"),
        Figure("size of the file", size, "MB", raw, "rollouts.jsonl", "<= 30 MB", size <= 30 and not missing),
        Figure("until all of it is read", median(found["whole"]), "s", None, "", "", True),
        Figure("a filter", median(found["filter"]), "s", None, "", "", True),
        Figure("opening a rollout", median(found["rollout"]), "s", None, "", "", True),
        Figure("a search in all trajectories", median(found["search"]), "s", None, "", "", True),
        Figure("writing it", seconds, "s", None, "", "", True),
        Figure("memory of that", memory, "MiB", None, "", "", True),
    ]
    finish("reports", figures)


if __name__ == "__main__":
    main()
