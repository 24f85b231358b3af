"""Models: what the model server costs beside a direct call, and beside NeMo Gym's model server and LiteLLM's proxy.

Every server under test is bound to one core; back end and caller share another and are lean enough not to be the
limit. All servers run at once, and rounds are interleaved, so that what else the machine does falls on all of them. A
core's throughput is told in requests for each second of CPU that the server spends on them: what it makes of a core
that it has to itself; what the clock said stands beside. Then 16,000 requests are held in flight against a back end
that takes seconds, and long histories are converted.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gymbox.lifetime import raise_file_limit
from gymbox_sandbox.responses import ResponsesParams
from load import BadAnswer, Line, load, request_bytes
from model_servers import LITELLM_VENV, ModelServer, NemoGymModel, gymbox, litellm, version
from nemo_gym_peer import VENV as NEMO_VENV
from nemo_gym_peer import CannotBeHad
from report import Figure, at_least, finish, median, within
from stub_backend import FIRST, SLOW

BACKEND_PORT, FIRST_PORT = 18_760, 18_761
BACKEND = f"http://127.0.0.1:{BACKEND_PORT}/v1"
SLOW_BACKEND = f"http://127.0.0.1:{BACKEND_PORT}/slow/v1"
ROUNDS, CALLS, STREAMS = 15, 60, 15
CONNECTIONS, WINDOW = 64, 1.0
"""Requests in flight while throughput is measured, and the seconds of one round of it."""
IN_FLIGHT = 16_000
TO_BACKEND = 2_500
"""Calls that may be at the back end at once; the others wait in the server. Both need files, which are limited."""
TURNS, HISTORY = 200, 2_000_000
CONVERSIONS = 21
TEXT = "What does it depend on? " * 80
RESPONSES_BODY = {"model": "stub", "input": [{"role": "user", "content": TEXT}]}
CHAT_BODY = {"model": "stub", "messages": [{"role": "user", "content": TEXT}]}


@dataclass
class Side:
    """One server asked in one dialect, and what was measured of it."""

    port: int
    path: str
    server: ModelServer | None = None
    streams: bool = True
    latencies: list[float] = field(default_factory=list)
    first_texts: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    """CPU-milliseconds a request."""

    def request(self, *, stream: bool = False) -> bytes:
        body: dict[str, Any] = RESPONSES_BODY if self.path.endswith("responses") else CHAT_BODY
        token = self.server.token if self.server is not None else "none"
        sent = body | {"stream": True} if stream else body
        return request_bytes(self.path, json.dumps(sent).encode(), token)

    def measure(self) -> None:
        """One round of everything.

        Raises:
            BadAnswer: an answer that is none.
        """
        request = self.request()
        with Line(self.port) as line:
            self.latencies += [line.seconds(request) for _ in range(CALLS)]
        if self.streams:
            request, text = self.request(stream=True), FIRST.encode()
            with Line(self.port) as line:
                self.first_texts += [line.seconds(request, until=text) for _ in range(STREAMS)]
        if self.server is not None:
            before = self.server.cpu_seconds()
            count = asyncio.run(load(self.port, self.request(), CONNECTIONS, WINDOW, deadline=60))
            if count.failed:
                raise BadAnswer(f"{self.server.name}: {len(count.failed)} failed: {count.failed[0]}")
            self.rates.append(count.answered / count.last)
            self.cpu.append(1000 * (self.server.cpu_seconds() - before) / count.answered)


def milliseconds(over: list[float], direct: list[float]) -> float | None:
    """How much longer the median of one takes than of the other."""
    return 1000 * (statistics.median(over) - statistics.median(direct)) if over and direct else None


def speed(folder: Path, core: int) -> tuple[list[Figure], list[str]]:
    """Latency, throughput and first text of every server in turn."""
    responses, chat = Side(BACKEND_PORT, "/v1/responses"), Side(BACKEND_PORT, "/v1/chat/completions")
    notes: list[str] = []
    with contextlib.ExitStack() as stack:

        def started(make: Callable[..., ModelServer], *rest: Any) -> ModelServer | None:
            try:
                return stack.enter_context(make(*rest, folder, core))
            except CannotBeHad as error:
                notes.append(f"could not be had: {error}")
                return None

        over_responses = started(lambda *rest: gymbox("openai", *rest), BACKEND, FIRST_PORT)
        over_chat = started(lambda *rest: gymbox("chat", *rest), BACKEND, FIRST_PORT + 1)
        nemo = started(NemoGymModel, BACKEND.removesuffix("/v1"), FIRST_PORT + 2)
        lite = started(litellm, BACKEND, FIRST_PORT + 3)
        sides = {
            "responses": Side(FIRST_PORT, "/v1/responses", over_responses),
            "chat": Side(FIRST_PORT + 1, "/v1/chat/completions", over_chat),
            "responses over chat": Side(FIRST_PORT + 1, "/v1/responses", over_chat),
            "chat over responses": Side(FIRST_PORT, "/v1/chat/completions", over_responses),
            "nemo": Side(FIRST_PORT + 2, "/v1/responses", nemo, streams=False),
            "litellm": Side(FIRST_PORT + 3, "/v1/chat/completions", lite),
        }
        measured = [responses, chat, *(side for side in sides.values() if side.server is not None)]
        for side in measured:
            side.measure()  # a warm-up
            for values in (side.latencies, side.first_texts, side.rates, side.cpu):
                values.clear()
        for _ in range(ROUNDS):
            for side in measured:
                side.measure()
        versions = [f"nemo-gym {version(NEMO_VENV, 'nemo-gym')}"] if nemo else []
        versions += [f"litellm {version(LITELLM_VENV, 'litellm')}"] if lite else []
    notes.append(f"baselines: {', '.join(versions) or 'none'}; {CONNECTIONS} requests in flight for throughput")

    def direct(name: str) -> Side:
        return chat if name.startswith("chat") or name == "litellm" else responses

    added = {name: milliseconds(side.latencies, direct(name).latencies) for name, side in sides.items()}
    first = {name: milliseconds(side.first_texts, direct(name).first_texts) for name, side in sides.items()}
    rate = {name: median(side.rates) for name, side in sides.items()}
    cpu = {name: median(side.cpu) for name, side in sides.items()}

    def core_rate(name: str) -> float | None:
        # by its CPU-seconds, since others use the core, too, and more of it the longer a server waits
        spent = cpu[name]
        return 1000 / spent if spent else None

    ours = ("responses", "chat", "responses over chat", "chat over responses")
    figures = [within(1.5, f"added latency, {name}", added[name], "ms") for name in ours]
    figures += [
        at_least(3, "NeMo Gym's added latency", added["nemo"], "ms", added["responses"], "gymbox, responses"),
        at_least(
            5, "throughput of a core, responses", core_rate("responses"), "requests/s", core_rate("nemo"), "NeMo Gym"
        ),
        at_least(
            2, "throughput of a core, chat", core_rate("chat"), "requests/s", core_rate("litellm"), "LiteLLM proxy"
        ),
    ]
    figures += [within(2, f"added to the first streamed text, {name}", first[name], "ms") for name in ours]
    notes.append(f"on the clock: {', '.join(f'{name} {value:.0f}/s' for name, value in rate.items() if value)}")
    notes.append(
        "added by LiteLLM: " + ", ".join(f"{value:.3g} ms" for value in (added["litellm"], first["litellm"]) if value)
    )
    return figures, notes


def in_flight(folder: Path, core: int) -> tuple[list[Figure], list[str]]:
    """As many requests at once as a large run makes, against a back end that takes its time."""
    raise_file_limit()
    server = gymbox("chat", SLOW_BACKEND, FIRST_PORT + 4, folder, core, f"model.max_concurrency={TO_BACKEND}")
    with server:
        side = Side(server.port, "/v1/chat/completions", server)
        count = asyncio.run(load(server.port, side.request(), IN_FLIGHT, 0, deadline=300))
        memory = server.peak_memory()
    lost = within(0, f"lost of {IN_FLIGHT:,} in flight", float(IN_FLIGHT - count.answered), "requests")
    notes = [
        f"{count.peak:,} of {IN_FLIGHT:,} were in flight at once, {TO_BACKEND:,} of them at a back end that takes "
        f"{SLOW:g} s; the last was answered after {count.last:.0f} s"
    ]
    if count.failed:
        notes.append(f"first failure: {count.failed[0][:300]}")
    delay = count.first - SLOW if count.answered else None
    return [
        lost,
        Figure(
            "in flight at once", float(count.peak), "requests", None, "", f">= {IN_FLIGHT}", count.peak >= IN_FLIGHT
        ),
        within(1.5, "its peak memory", memory, "GiB"),
        within(10, "its first answer's delay", delay, "s"),
    ], notes


def history() -> list[dict[str, Any]]:
    """A rollout's input after 200 turns: reasoning, a tool call and what the tool said; 2 MB as JSON."""
    said = "line of output that a tool printed\n" * (HISTORY // TURNS // 38)
    items: list[dict[str, Any]] = [{"type": "message", "role": "user", "content": "Do the task."}]
    for turn in range(TURNS):
        call = {"type": "function_call", "id": f"fc_{turn}", "call_id": f"call_{turn}", "status": "completed"}
        summary = [{"type": "summary_text", "text": f"Step {turn} is next."}]
        items += [
            {"type": "reasoning", "id": f"rs_{turn}", "summary": summary},
            call | {"name": "run", "arguments": json.dumps({"command": f"step {turn} --with 'some arguments'"})},
            {"type": "function_call_output", "call_id": f"call_{turn}", "output": said},
        ]
    return items


def conversions() -> tuple[list[Figure], list[str]]:
    """Decoded request to decoded request, with all checks, of the longest history."""
    from gymbox.models.chat_requests import chat_from_params, params_from_chat
    from gymbox.models.messages_requests import messages_from_params, params_from_messages

    tool = {"type": "function", "name": "run", "parameters": {"type": "object", "properties": {}}}
    body = {"model": "stub", "input": history(), "tools": [tool], "max_output_tokens": 1000}
    size = len(json.dumps(body))
    params = ResponsesParams.model_validate(body)
    chat, messages = chat_from_params(params), messages_from_params(params)
    ways: dict[str, Callable[[], Any]] = {
        "Responses to Chat": lambda: chat_from_params(ResponsesParams.model_validate(body)),
        "Chat to Responses": lambda: params_from_chat(chat),
        "Responses to Messages": lambda: messages_from_params(ResponsesParams.model_validate(body)),
        "Messages to Responses": lambda: params_from_messages(messages),
    }
    took: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(CONVERSIONS):
        for name, way in ways.items():
            gc.collect()
            began = time.perf_counter()
            way()
            took[name].append(1000 * (time.perf_counter() - began))
    figures = [within(15, f"{TURNS} turns, {name}", median(values), "ms") for name, values in took.items()]
    return figures, [f"the history of {TURNS} turns has {size / 1e6:.2f} MB"]


def main() -> None:
    cores = sorted(os.sched_getaffinity(0))
    figures: list[Figure] = []
    notes: list[str] = []
    if len(cores) < 2:
        notes.append("one core only: servers, back end and caller share it, so that throughput says little")
    os.sched_setaffinity(0, {cores[-1]})  # what it starts, too, unless that is told otherwise
    backend = subprocess.Popen([sys.executable, str(Path(__file__).with_name("stub_backend.py")), str(BACKEND_PORT)])
    try:
        _wait_for_backend()
        with tempfile.TemporaryDirectory(prefix="gymbox-bench-") as name:
            for found, said in (speed(Path(name), cores[0]), in_flight(Path(name), cores[0]), conversions()):
                figures += found
                notes += said
    finally:
        backend.terminate()
        backend.wait()
    finish("models", figures, notes)


def _wait_for_backend() -> None:
    deadline = time.monotonic() + 20
    while True:
        try:
            with Line(BACKEND_PORT):
                return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


if __name__ == "__main__":
    main()
