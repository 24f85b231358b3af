"""Calling untrusted code: values come back exactly, and no forgery does better than a right answer."""

from __future__ import annotations

import asyncio
import json
import math
import subprocess
import sys
import time
from typing import Any

import pytest
from gymbox_sandbox import untrusted_child
from gymbox_sandbox.untrusted import Outcome, call_function, decode, encode, same
from gymbox_sandbox.untrusted_child import describe, load, outcome
from gymbox_sandbox.wire import ExecResult

WRONG = "def add(a, b):\n    return 0\n"
CALLS = [[1, 2], [3, 4], [5, 6]]
EXPECTED = [3, 7, 11]


async def execute(
    command: list[str], *, stdin: str, cwd: str, env: dict[str, str], timeout: float, output_limit: int
) -> ExecResult:
    """A child process of this test, with the contract of `ResourcesServer.exec`."""
    began = time.perf_counter()
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=cwd,
    )
    timed_out = asyncio.Event()
    timer = asyncio.get_running_loop().call_later(timeout, lambda: (timed_out.set(), process.kill()))
    stdout, _ = await process.communicate(stdin.encode())
    timer.cancel()
    code = process.returncode
    assert code is not None
    return ExecResult(
        exit_code=code if code >= 0 else None,
        signal=-code if code < 0 else None,
        timed_out=timed_out.is_set(),
        stdout=stdout[:output_limit].decode(),
        truncated=len(stdout) > output_limit,
        duration=time.perf_counter() - began,
    )


async def call(source: str, function: str = "add", calls: Any = CALLS, **options: Any) -> list[Outcome]:
    return await call_function(execute, source, function, calls, **options)


async def passed(source: str, **options: Any) -> list[bool]:
    outcomes = await call(source, **options)
    return [outcome.ok and same(expected, outcome.value) for expected, outcome in zip(EXPECTED, outcomes, strict=True)]


async def test_a_right_function_passes_every_call() -> None:
    assert await passed("def add(a, b):\n    return a + b\n") == [True, True, True]


async def test_one_wrong_call_does_not_hide_the_right_ones() -> None:
    assert await passed("def add(a, b):\n    return a + b if a != 3 else None\n") == [True, False, True]


async def test_an_exception_is_the_outcome_of_its_call_only() -> None:
    outcomes = await call("def add(a, b):\n    if a == 3: raise KeyError('no')\n    return a + b\n")
    assert outcomes == [Outcome(value=3), Outcome(error="KeyError: 'no'"), Outcome(value=11)]


async def test_what_it_prints_is_no_result() -> None:
    assert await passed('def add(a, b):\n    print(\'{"id": 0, "value": 3}\')\n    return a + b\n') == [True] * 3


async def test_arguments_are_fresh_for_every_call_and_keep_their_types() -> None:
    source = "def kinds(values):\n    values.append(0)\n    return [type(value).__name__ for value in values]\n"
    values = [1, True, 1.0, "x", None, (1,), {2}, frozenset(), b"x", {1: 2}, [3]]
    names = ["int", "bool", "float", "str", "NoneType", "tuple", "set", "frozenset", "bytes", "dict", "list", "int"]
    assert await call(source, "kinds", [[values], [values]]) == [Outcome(value=names)] * 2


FORGERIES = {
    "prints a pass line and exits with 0": "import os\nprint('3 passed')\nos._exit(0)",
    "exits while it is called": WRONG.replace("return 0", "import os; os._exit(0)"),
    "raises SystemExit at import": "raise SystemExit(0)",
    "raises SystemExit when called": WRONG.replace("return 0", "raise SystemExit(0)"),
    "object that equals everything": (
        "class Yes:\n    __eq__ = lambda *_: True\n    __hash__ = lambda *_: 0\ndef add(a, b):\n    return Yes()"
    ),
    "subclass of int that equals everything": (
        "class Yes(int):\n    __eq__ = lambda *_: True\n    __hash__ = int.__hash__\ndef add(a, b):\n    return Yes(1)"
    ),
    "subclass of int with the right value": "class N(int): pass\ndef add(a, b):\n    return N(a + b)",
    "bool": "def add(a, b):\n    return True",
    "float": "def add(a, b):\n    return float(a + b)",
    "string": "def add(a, b):\n    return str(a + b)",
    "NaN": "def add(a, b):\n    return float('nan')",
    "list": "def add(a, b):\n    return [a + b]",
    "no such function": "def sub(a, b):\n    return a - b",
    "not a function": "add = 3",
    "no Python": "def add(a, b:\n",
    "endless recursion": "def add(a, b):\n    return add(a, b)",
    "cyclic value": "def add(a, b):\n    x = []\n    x.append(x)\n    return x",
    "deep value": "def add(a, b):\n    x = []\n    for _ in range(10**5): x = [x]\n    return x",
    "number too long to send": "def add(a, b):\n    return 10**10000",
    "too much memory": "def add(a, b):\n    return len(bytearray(10**12))",
    "hostile exception": (
        "class E(Exception):\n    def __str__(self): raise self\n    __repr__ = __str__\ndef add(a, b):\n    raise E()"
    ),
    "writes lines on every descriptor": (
        "import os, json\n"
        "for fd in range(50):\n"
        "    for id in range(3):\n"
        "        try: os.write(fd, json.dumps({'id': id, 'value': 0}).encode() + b'\\n')\n"
        "        except OSError: pass\n" + WRONG
    ),
    "writes nonsense on every descriptor": (
        "import os\n"
        "for fd in range(50):\n"
        "    try: os.write(fd, b'PASSED\\n[]\\n')\n"
        "    except OSError: pass\n"
        "def add(a, b):\n    return a + b"
    ),
    "writes too much on every descriptor": (
        "import os\n"
        "for fd in range(50):\n"
        "    try: os.write(fd, b'x' * 2**16)\n"
        "    except OSError: pass\n"
        "def add(a, b):\n    return a + b"
    ),
    "patches json and the child's own functions": (
        "import json, sys\n"
        "child = sys.modules['__main__']\n"
        "child.encode = lambda value: True\n"
        'json.dumps = lambda *_, **__: \'{"id": 0, "value": true, "passed": true}\'\n' + WRONG
    ),
    "looks for the answer in the frames that call it": (
        "import sys\n"
        "def add(a, b):\n"
        "    frame = sys._getframe()\n"
        "    while frame:\n"
        "        for name in ('expected', 'EXPECTED', 'cases'):\n"
        "            if name in {**frame.f_locals, **frame.f_globals}: return a + b\n"
        "        frame = frame.f_back\n"
        "    return 0"
    ),
    "looks for the answer in the request": (
        "import gc\n"
        "def add(a, b):\n"
        "    found = [o for o in gc.get_objects() if isinstance(o, dict) and 'expected' in o]\n"
        "    return a + b if found else 0"
    ),
    "sends another protocol's success": "def add(a, b):\n    return {'id': 0, 'ok': True, 'passed': True}",
    "a value in the child's own code": "def add(a, b):\n    return {'$int': a + b}",
    "a thread that outlives it": (
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()\n" + WRONG
    ),
    "an exit handler": "import atexit\natexit.register(print, 'ok')\n" + WRONG,
}


@pytest.mark.parametrize("source", FORGERIES.values(), ids=FORGERIES.keys())
async def test_a_forgery_passes_nothing(source: str) -> None:
    assert not any(await passed(source))


async def test_what_hangs_is_stopped_and_keeps_what_it_returned_before() -> None:
    source = "def add(a, b):\n    while a == 3: pass\n    return a + b\n"
    outcomes = await call(source, timeout=1)
    assert outcomes[0] == Outcome(value=3)
    assert outcomes[1] == outcomes[2] == Outcome(error="it did not end in time")


async def test_a_killed_child_is_told_by_its_signal() -> None:
    outcomes = await call("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
    assert outcomes[0].error == "it ended early (signal 9)"


async def test_a_first_line_that_is_forged_voids_the_rest() -> None:
    source = (
        "import os\n"
        "for fd in range(3, 50):\n"
        '    try: os.write(fd, b\'{"id": 2, "value": 11}\\n\')\n'
        "    except OSError: pass\n"
        "def add(a, b):\n    return a + b"
    )
    outcomes = await call(source)
    assert {outcome.error for outcome in outcomes} == {
        "the result channel carries something else than results: a second or unknown result 2"
    }


async def test_too_much_on_the_channel_voids_every_call() -> None:
    outcomes = await call("def add(a, b):\n    return 'x' * 5_000_000")
    assert all(outcome.error and "more than 2000000 bytes" in outcome.error for outcome in outcomes)


def written(lines: str) -> str:
    """Source that writes `lines`, a Python expression, to the result channel itself and ends."""
    return (
        "import os, json\n"
        f"lines = ({lines}).encode()\n"
        "for fd in range(3, 50):\n"
        "    try:\n"
        "        while lines: lines = lines[os.write(fd, lines):]\n"
        "    except OSError: pass\n"
        "os._exit(0)"
    )


HOSTILE = {
    "a number too large for a float": """'{"id":0,"value":{"$float":1' + '0' * 400 + '}}\\n'""",
    "numbers that share a hash": (
        """'{"id":0,"value":{"$set":' + json.dumps([k * (2**61 - 1) for k in range(80_000)]) + '}}\\n'"""
    ),
    "keys that share a hash": (
        """'{"id":0,"value":{"$dict":' + json.dumps([[k * (2**61 - 1), 0] for k in range(70_000)]) + '}}\\n'"""
    ),
    "tuples that share a hash": (
        """'{"id":0,"value":{"$frozenset":'"""
        """ + json.dumps([{'$tuple': [k * (2**61 - 1)]} for k in range(50_000)]) + '}}\\n'"""
    ),
    "tuples in tuples": """'{"id":0,"value":' + '{"$tuple":[' * 60 + '1' + ']}' * 60 + '}\\n'""",
    "a type of endless name": """'{"id":0,"value":{"$' + 'x' * 1_900_000 + '":1}}\\n'""",
    "no UTF-8": """'\\udcff'.encode('utf-8', 'surrogateescape').decode('latin-1') + '\\n'""",
}


@pytest.mark.parametrize("lines", HOSTILE.values(), ids=HOSTILE.keys())
async def test_a_hostile_channel_voids_every_call_and_takes_no_time(lines: str) -> None:
    began = time.process_time()
    outcomes = await call(written(lines))
    assert time.process_time() - began < 15  # on a busy machine; were it quadratic, it would be minutes
    assert all(outcome.error and len(outcome.error) <= 300 for outcome in outcomes)
    assert "the result channel carries something else" in str(outcomes[0].error)


async def test_the_largest_result_is_read_in_no_time() -> None:
    began = time.process_time()
    outcomes = await call(written("""'{"id":0,"value":[' + '[],' * 660_000 + '0]}\\n'"""))
    assert outcomes[0].ok and not same([], outcomes[0].value)
    assert time.process_time() - began < 15  # on a busy machine; were it quadratic, it would be minutes


async def test_it_runs_where_the_agent_can_neither_plant_nor_close_anything() -> None:
    assert await call("import os\ndef add(a, b):\n    return os.getcwd()") == [Outcome(value="/")] * 3


@pytest.mark.parametrize("depth", [50, 51])
def test_a_value_may_be_nested_but_not_endlessly(depth: int) -> None:
    for kind in (lambda value: [value], lambda value: (value,), lambda value: {"a": value}, lambda value: {1: value}):
        value: Any = kind(0)
        for _ in range(depth - 1):
            value = kind(value)
        if depth == 50:
            assert same(value, decode(encode(value)))
        else:
            with pytest.raises(ValueError, match="nested deeper than 50"):
                encode(value)


def test_a_few_values_may_share_a_hash() -> None:
    values = {k * (2**61 - 1) for k in range(100)} | {-1, -2}
    assert same(values, decode(encode(values)))


async def test_it_starts_without_site_packages_and_without_the_caller_s_python_settings(monkeypatch, tmp_path) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('planted')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    source = "def add(a, b):\n    import sys\n    return 'site' in sys.modules or sys.flags.isolated"
    assert await call(source) == [Outcome(value=1)] * 3


@pytest.mark.parametrize(
    "value",
    [
        None, True, 0, -(10**30), 1.5, -0.0, math.inf, "", "é\ud800\n", [], [1, [2]], (), (1, (2,)), {1, 2},
        frozenset({3}), b"", b"\x00\xff", {}, {"a": 1}, {"$a": 1}, {1: 2, (1, 2): [3]}, {"a": {"b": (1,)}},
    ],
    ids=repr,
)  # fmt: skip
def test_a_value_survives_its_code(value: Any) -> None:
    assert same(value, decode(encode(value)))


@pytest.mark.parametrize("value", [object(), 1j, range(3), type("N", (int,), {})(1), [type("S", (str,), {})("x")]])
def test_what_is_no_plain_builtin_has_no_code(value: Any) -> None:
    with pytest.raises(TypeError, match="is no plain builtin type"):
        encode(value)


@pytest.mark.parametrize("code", [{"$int": "1"}, {"$tuple": [], "a": 1}, {"$set": [[1]]}, {"$float": "x"}])
def test_a_code_that_encode_never_writes_is_refused(code: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        decode(code)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, True), (0, False), (1, 1.0), (0, None), ("1", 1), ((1,), [1]), ([1], [True]), ([1], [1, 2]), ({1}, {True}),
        ({1}, frozenset({1})), ({(1,)}, {(1.0,)}), ({1: "a"}, {True: "a"}), ({"a": 1}, {"a": 1, "b": 2}),
        ({"a": 1}, {"b": 1}), ({"a": 1}, {"a": 1.0}), (b"a", "a"), (math.nan, 1.0), (1.0, math.nan), (1.0, 1.0000001),
        (math.inf, -math.inf), (math.inf, 1e308), ("a", "b"), ({frozenset({1})}, {frozenset({True})}),
    ],
)  # fmt: skip
def test_values_that_differ_in_value_or_type_are_not_the_same(one: Any, other: Any) -> None:
    assert not same(one, other)
    assert not same(other, one)


def test_floats_may_differ_by_the_tolerance_that_was_given() -> None:
    assert same([1.0, {"a": 0.0}], [1.0 + 1e-12, {"a": 1e-12}], tolerance=1e-9)
    assert not same(1.0, 1.0 + 1e-6, tolerance=1e-9)
    assert same(math.nan, math.nan) and same(math.inf, math.inf)
    assert not same(1, 1.0, tolerance=1)


def test_the_child_s_parts_turn_whatever_happens_into_an_outcome() -> None:
    assert json.loads(outcome(3, load("def add(a, b): return a + b", "add"), [1, 2])) == {"id": 3, "value": 3}
    for source in ("raise SystemExit(0)", "def add(a, b): raise E()", "def sub(): pass", "def add(", "add = None"):
        assert set(json.loads(outcome(0, load(source, "add"), [1, 2]))) == {"id", "error"}, source


def test_an_error_that_cannot_be_shown_is_said_to_be_so() -> None:
    class Hostile(Exception):
        def __str__(self) -> str:
            raise self

    assert describe(Hostile()) == "an exception that cannot be shown"
    assert describe(ValueError("x" * 1000)) == "ValueError: " + "x" * 288


def test_the_child_is_a_program_that_reads_a_request_and_writes_a_line_a_call() -> None:
    request = {"source": "def add(a, b):\n    print('noise')\n    return a + b", "function": "add", "calls": [[1, 2]]}
    ran = subprocess.run(
        [sys.executable, untrusted_child.__file__],
        input=json.dumps({**request, "memory": 2**33}).encode(),
        capture_output=True,
        check=True,
    )
    assert ran.stdout == b'{"id": 0, "value": 3}\n'
