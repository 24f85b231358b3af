"""Write data/example.jsonl: `python environments/unit_tests/generate.py [--seed 1]`.

Each problem is a right solution: its docstring is the statement, its source the reference and the gold answer. This
file is no part of the environment's image.
"""

from __future__ import annotations

import argparse
import hashlib
import inspect
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

from gymbox_sandbox.generator import dataset_of, message_item, write_rows
from gymbox_sandbox.untrusted import encode

FRESH = 400
"""Random tests a problem: an answer that is wrong for 3 % of the inputs passes them once in 200,000 tries."""


@dataclass(frozen=True)
class Problem:
    """A right function, the arguments of its fixed tests (the first two are shown), how to draw more."""

    solution: Callable[..., Any]
    fixed: list[list[Any]]
    inputs: list[dict[str, Any]]
    tolerance: float = 0.0


PROBLEMS: list[Problem] = []


def problem(*inputs: dict[str, Any], fixed: list[list[Any]], tolerance: float = 0.0) -> Callable[..., Any]:
    """Add the decorated function to `PROBLEMS`."""

    def add(solution: Callable[..., Any]) -> Callable[..., Any]:
        PROBLEMS.append(Problem(solution, fixed, list(inputs), tolerance))
        return solution

    return add


def integer(low: int, high: int) -> dict[str, Any]:
    return {"int": [low, high]}


def text(alphabet: str, low: int, high: int) -> dict[str, Any]:
    return {"str": alphabet, "size": [low, high]}


def mirrored(half: dict[str, Any]) -> dict[str, Any]:
    return {"mirrored": half}


def choice(*values: Any) -> dict[str, Any]:
    return {"choice": [encode(value) for value in values]}


def either(*specifications: dict[str, Any]) -> dict[str, Any]:
    return {"any": list(specifications)}


def many(item: dict[str, Any], low: int, high: int) -> dict[str, Any]:
    return {"list": item, "size": [low, high]}


@problem(
    integer(-50, 50),
    integer(-20, 10),
    integer(10, 30),
    fixed=[[5, 0, 3], [-7, -2, 9], [4, 4, 4], [1, 0, 3], [5, 10, 20], [25, 10, 20], [-30, -20, -10], [-5, -20, -10]],
)
def clamp(value: int, low: int, high: int) -> int:
    """Return `value`, but no less than `low` and no more than `high`."""
    return max(low, min(value, high))


@problem(
    either(text("aB1 ,", 0, 9), mirrored(text("abAB1 ,", 1, 5)), text("aA", 2, 12)),
    fixed=[["Never odd or even"], ["gymbox"], [""], ["A"], ["ab"], [",,,"], ["abba"], ["1a2"], ["1 1"], ["abcab"]],
)
def is_palindrome(text: str) -> bool:
    """Tell whether `text` reads the same backwards, looking only at letters and digits and ignoring case."""
    kept = [character.lower() for character in text if character.isalnum()]
    return kept == kept[::-1]


@problem(text("abcAB \n\t-", 0, 40), fixed=[["the cat the dog"], ["A a"], [""], ["  \n "], ["a-b a-b"], ["a\ta"]])
def word_counts(text: str) -> dict[str, int]:
    """Return how often each word occurs. Words are separated by whitespace; lower and upper case count as the same,
    and the keys are in lower case."""
    counts: dict[str, int] = {}
    for word in text.lower().split():
        counts[word] = counts.get(word, 0) + 1
    return counts


@problem(many(integer(-9, 9), 0, 14), fixed=[[[3, 1, 3, 2, 1]], [[]], [[5, 5, 5]], [[0, -1, 0, 1]]])
def without_repeats(numbers: list[int]) -> list[int]:
    """Return the numbers without repeats, each where it came first."""
    return list(dict.fromkeys(numbers))


@problem(either(integer(0, 3999), integer(0, 100)), fixed=[[14], [1994], [0], [1], [3999], [400], [949], [2888]])
def roman(number: int) -> str:
    """Return `number` (0 to 3999) as a Roman numeral; 0 is the empty string."""
    digits = [(1000, "M"), (900, "CM"), (500, "D"), (400, "CD"), (100, "C"), (90, "XC"), (50, "L"), (40, "XL")]
    digits += [(10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I")]
    numeral = ""
    for value, letters in digits:
        numeral += letters * (number // value)
        number %= value
    return numeral


@problem(
    either(integer(-3, 400), integer(400, 10_000), choice(4, 9, 25, 49, 121, 169, 289, 361, 529, 841, 961, 4489)),
    fixed=[[12], [97], [1], [0], [-5], [2], [361], [1024], [2310], [9409], [9973]],
)
def prime_factors(number: int) -> list[int]:
    """Return the prime factors of `number` in ascending order, each as often as it divides; `[]` for less than 2."""
    factors: list[int] = []
    divisor = 2
    while number > 1:
        if divisor * divisor > number:
            divisor = number
        while number % divisor == 0:
            factors.append(divisor)
            number //= divisor
        divisor += 1
    return factors


@problem(many(integer(-99, 99), 0, 12), fixed=[[[3, -1, 8]], [[5]], [[]], [[2, 2]]])
def extremes(numbers: list[int]) -> tuple[int, int] | None:
    """Return the tuple (smallest, largest), or None if there are no numbers."""
    return (min(numbers), max(numbers)) if numbers else None


@problem(
    many(integer(0, 9), 0, 10),
    many(integer(0, 9), 0, 10),
    fixed=[[[1, 2, 3], [2, 3, 4]], [[1], [2]], [[], []], [[7, 7], [7]]],
)
def shared(left: list[int], right: list[int]) -> set[int]:
    """Return the set of the numbers that are in both lists."""
    return set(left) & set(right)


@problem(many({"float": [-50, 50]}, 0, 9), fixed=[[[1.0, 2.0, 4.0]], [[]], [[2.5]], [[-1.0, 1.0]]], tolerance=1e-9)
def mean(numbers: list[float]) -> float:
    """Return the arithmetic mean as a float; of no numbers it is NaN (`float("nan")`)."""
    return sum(numbers) / len(numbers) if numbers else float("nan")


def brackets() -> list[str]:
    """Brackets in the right order, and the same with one pair of neighbours exchanged."""
    draw = random.Random(1)
    found = []
    for length in range(1, 31):
        text = ""
        for _ in range(length % 5 + 2):
            pair, place = draw.choice(("()", "[]", "{}")), draw.randint(0, len(text))
            text = f"{pair[0]}{text[:place]}{pair[1]}{text[place:]}"
        place = draw.randrange(len(text) - 1)
        found += [text, text[:place] + text[place : place + 2][::-1] + text[place + 2 :]]
    return found


@problem(
    either(text("()[]{}", 0, 8), text("()", 0, 6), text("([)]", 2, 6), choice(*brackets())),
    fixed=[["([]{})"], ["([)]"], [""], ["("], ["]"], ["{{}}"], ["{[}]"], ["())("], ["(]"], ["()[]"]],
)
def balanced(brackets: str) -> bool:
    """Tell whether every bracket in a string of `()[]{}` is closed by one of its kind, in the right order."""
    closing = {")": "(", "]": "[", "}": "{"}
    opened: list[str] = []
    for bracket in brackets:
        if bracket not in closing:
            opened.append(bracket)
        elif not opened or opened.pop() != closing[bracket]:
            return False
    return not opened


@problem(text("aabbc", 0, 16), fixed=[["aaabcc"], ["abc"], [""], ["zz"]])
def run_lengths(text: str) -> list[tuple[str, int]]:
    """Return the runs of equal characters in order, each as a tuple (character, length)."""
    from itertools import groupby

    return [(character, len(list(run))) for character, run in groupby(text)]


@problem(many(integer(-20, 20), 0, 10), integer(1, 12), fixed=[[[1, 2, 3, 4, 5], 2], [[1, 2], 3], [[], 1], [[9], 1]])
def chunks(numbers: list[int], size: int) -> list[list[int]]:
    """Cut the list into lists of `size` numbers; the last may be shorter."""
    return [numbers[start : start + size] for start in range(0, len(numbers), size)]


@problem(integer(0, 120), fixed=[[10], [1], [0], [2], [90]])
def fibonacci(index: int) -> int:
    """Return the Fibonacci number with that index, where those with index 0 and 1 are 0 and 1."""
    one, other = 0, 1
    for _ in range(index):
        one, other = other, one + other
    return one


@problem(integer(0, 4000), integer(2, 16), fixed=[[255, 16], [5, 2], [0, 10], [15, 16], [16, 16]])
def in_base(number: int, base: int) -> str:
    """Return the number (not negative) in a base from 2 to 16, with the digits `0123456789abcdef`."""
    digits = ""
    while number:
        digits = "0123456789abcdef"[number % base] + digits
        number //= base
    return digits or "0"


@problem(text("abcxyzABCXYZ ,!5é", 0, 20), integer(-60, 60), fixed=[["Hello, World", 3], ["abc", -1], ["", 5]])
def caesar(text: str, shift: int) -> str:
    """Move each letter a-z and A-Z by `shift` places in the alphabet, wrapping around; leave all else as it is."""
    moved = ""
    for character in text:
        if "a" <= character <= "z" or "A" <= character <= "Z":
            first = ord("a") if character.islower() else ord("A")
            character = chr((ord(character) - first + shift) % 26 + first)
        moved += character
    return moved


@problem(many(text("abc", 1, 4), 0, 9), fixed=[[["b", "aa", "a"]], [["abc", "ab"]], [[]], [["a", "a"]]])
def by_length(words: list[str]) -> dict[int, list[str]]:
    """Group the words by length: each length that occurs with its words in alphabetical order, repeats kept."""
    groups: dict[int, list[str]] = {}
    for word in sorted(words):
        groups.setdefault(len(word), []).append(word)
    return groups


@problem(many(integer(-9, 9), 0, 12), integer(-12, 12), fixed=[[[2, 7, 11], 9], [[1, 2], 5], [[3, 3], 6], [[], 0]])
def pair_with_sum(numbers: list[int], total: int) -> tuple[int, int] | None:
    """Return the tuple (i, j) of two indices, i < j, whose numbers add up to `total`: the pair with the smallest j,
    and of those the one with the smallest i. None if there is no pair."""
    first: dict[int, int] = {}
    for j, number in enumerate(numbers):
        if total - number in first:
            return first[total - number], j
        first.setdefault(number, j)
    return None


@problem(
    either(*(many(many(integer(0, 9), columns, columns), 0, 5) for columns in range(1, 6))),
    fixed=[[[[1, 2], [3, 4], [5, 6]]], [[[7]]], [[]], [[[1, 2, 3]]]],
)
def transposed(rows: list[list[int]]) -> list[list[int]]:
    """Turn the rows of a matrix, all of the same length, into columns; an empty matrix stays empty."""
    return [list(column) for column in zip(*rows, strict=True)]


def hours(seconds: int) -> list[int]:
    return [3_600 * hour + seconds for hour in range(1, 56)]


@problem(
    either(integer(0, 200_000), integer(0, 130), integer(3_500, 3_700), choice(*hours(-1)), choice(*hours(0))),
    fixed=[[3661], [59], [0], [86_400], [60], [61], [599], [600], [3599], [3600], [35_999], [36_000], [360_000]],
)
def duration(seconds: int) -> str:
    """Write a number of seconds as `h:mm:ss`: hours without leading zeros, minutes and seconds with two digits."""
    return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"


@problem(
    many(many(integer(-10, 20), 2, 2), 0, 7), fixed=[[[[1, 3], [2, 6], [8, 9]]], [[[1, 2], [2, 3]]], [[]], [[[5, 1]]]]
)
def merged(intervals: list[list[int]]) -> list[tuple[int, int]]:
    """Each interval is two numbers, in either order, that both belong to it. Merge those that overlap or share an
    end; return the result as tuples (low, high) in ascending order."""
    result: list[tuple[int, int]] = []
    for low, high in sorted((min(pair), max(pair)) for pair in intervals):
        if result and low <= result[-1][1]:
            result[-1] = (result[-1][0], max(high, result[-1][1]))
        else:
            result.append((low, high))
    return result


@problem(text("abcd", 0, 8), text("abcd", 0, 8), fixed=[["kitten", "sitting"], ["", "abc"], ["", ""], ["ab", "ab"]])
def edit_distance(left: str, right: str) -> int:
    """Return how many characters must be inserted, deleted or replaced, at the least, to turn `left` into `right`."""
    row = list(range(len(right) + 1))
    for i, one in enumerate(left, 1):
        before, row[0] = row[0], i
        for j, other in enumerate(right, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (one != other))
    return row[-1]


@problem(
    many({"choice": [0, 1, True, False, 1.0, "1", None]}, 0, 8),
    fixed=[[[1, True, "a", 2.0, None]], [[3, 4]], [[]], [[True, 1]]],
)
def type_names(values: list[object]) -> list[str]:
    """Return the name of each value's type, such as `int`, `bool`, `float`, `str` or `NoneType`."""
    return [type(value).__name__ for value in values]


@problem(text("abz é€\n", 0, 12), fixed=[["hi"], ["é"], [""], ["\n"]])
def checksum(text: str) -> bytes:
    """Encode `text` as UTF-8 and return it with one more byte: the sum of all its bytes modulo 256."""
    data = text.encode("utf-8")
    return data + bytes([sum(data) % 256])


@problem(integer(-9, 9), many(integer(-5, 5), 0, 5), fixed=[[2, [1, 0, 3]], [5, []], [0, [4, 9]], [1, [1, 1]]])
def polynomial(x: int, coefficients: list[int]) -> int:
    """Return the value at `x` of the polynomial with these coefficients, the one of the highest power first."""
    value = 0
    for coefficient in coefficients:
        value = value * x + coefficient
    return value


def rows(seed: str) -> list[dict[str, Any]]:
    """One task a problem, the same for the same seed."""
    return [row(index, problem, seed) for index, problem in enumerate(PROBLEMS)]


def row(index: int, problem: Problem, seed: str) -> dict[str, Any]:
    name = problem.solution.__name__
    source = source_of(problem.solution)
    answered = f"```python\n{source}```"
    return {
        "id": f"unit_tests-{index:03d}-{name}",
        "responses_create_params": {"input": [{"role": "user", "content": statement(problem)}]},
        "verifier_metadata": {
            "function": name,
            "cases": [
                {"args": encode(arguments), "expected": encode(problem.solution(*arguments))}
                for arguments in problem.fixed
            ],
            "fresh": {
                "seed": hashlib.sha256(f"{seed}:{name}".encode()).hexdigest(),
                "count": FRESH,
                "inputs": problem.inputs,
                "reference": source,
            },
            "tolerance": problem.tolerance,
        },
        "gold_replies": [[message_item(answered)]],
    }


def source_of(solution: Callable[..., Any]) -> str:
    """The function without its decorator."""
    source = dedent(inspect.getsource(solution))
    return source[source.index("def ") :]


def statement(problem: Problem) -> str:
    """What the model is asked."""
    name, signature = problem.solution.__name__, inspect.signature(problem.solution)
    shown = "\n".join(
        f">>> {name}({', '.join(repr(argument) for argument in arguments)})\n{problem.solution(*arguments)!r}"
        for arguments in problem.fixed[:2]
    )
    about = " ".join(inspect.getdoc(problem.solution).split())
    types = str(signature).replace("'", "")
    return (
        f"Write a Python function `{name}{types}`.\n\n{about}\n\nExamples:\n{shown}\n\n"
        "Types must be exactly as in the signature. Use only the standard library. "
        "Answer with the whole function in a fenced Python block."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", default="1", help="any text; a secret one makes tests that nobody can tell")
    parser.add_argument("--output", type=Path, default=dataset_of(__file__))
    options = parser.parse_args()
    write_rows(rows(options.seed), options.output)


if __name__ == "__main__":
    main()
