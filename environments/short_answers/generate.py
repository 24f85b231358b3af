"""Write data/example.jsonl: `python environments/short_answers/generate.py [--seed 1] [--rows 24]`."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

from gymbox_sandbox import quoted
from gymbox_sandbox.generator import message_item, write_dataset

INSTRUCTIONS = "Answer with the result alone, in at most twenty words, in whatever words and units you like best."
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


class Question(NamedTuple):
    """A question with its reference, the same in other words, and an answer that is wrong."""

    text: str
    reference: str
    reworded: str
    wrong: str


def rows(seed: int, count: int) -> list[dict[str, Any]]:
    """`count` tasks, the same for the same seed."""
    draw = random.Random(seed)
    kinds = (duration, weekday, share)
    return [row(index, kinds[index % len(kinds)](draw)) for index in range(count)]


def row(index: int, question: Question) -> dict[str, Any]:
    return {
        "id": f"short_answers-{index:03d}",
        "responses_create_params": {
            "input": [
                {"role": "developer", "content": INSTRUCTIONS},
                {"role": "user", "content": question.text},
            ]
        },
        "verifier_metadata": {"question": question.text, "reference": question.reference},
        "gold_replies": [[message_item(question.reworded)]],
        "gold_judgements": [
            judgement(question.reworded, "It says the same as the reference.", True),
            judgement(question.wrong, "The reference says something else.", False),
        ],
    }


def judgement(answer: str, reason: str, correct: bool) -> dict[str, Any]:
    """What a good judge says when it is shown `answer`; the scripted one replays it."""
    return {"contains": quoted(answer), "says": {"reason": reason, "correct": correct}}


def duration(draw: random.Random) -> Question:
    start, begin, hours, minutes = (
        draw.randint(6, 15),
        draw.choice((0, 5, 10)),
        draw.randint(1, 4),
        draw.randint(15, 45),
    )
    total = hours * 60 + minutes
    leaves, arrives = f"{start:02d}:{begin:02d}", f"{start + hours:02d}:{begin + minutes:02d}"
    text = f"A train leaves the station at {leaves} and arrives at {arrives}. How long does it travel?"
    return Question(text, f"{hours} h {minutes} min", f"It takes {total} minutes.", f"It takes {total + 15} minutes.")


def weekday(draw: random.Random) -> Question:
    today, ahead = draw.randrange(7), draw.randint(3, 40)
    day, wrong = DAYS[(today + ahead) % 7], DAYS[(today + ahead + 1) % 7]
    text = f"Today is a {DAYS[today]}. A parcel arrives in exactly {ahead} days. On which day of the week is that?"
    return Question(text, day, f"The parcel will come on a {day}.", f"The parcel will come on a {wrong}.")


def share(draw: random.Random) -> Question:
    of = draw.choice((20, 25, 40, 50))
    part = draw.randint(1, of - 1)
    percent = f"{part * 100 / of:g}"
    text = f"In a class of {of} children, {part} have a bicycle of their own. What share of the class is that?"
    return Question(text, f"{percent}%", f"{percent} out of every hundred", f"{part} percent and a half")


if __name__ == "__main__":
    write_dataset(rows, beside=__file__)
