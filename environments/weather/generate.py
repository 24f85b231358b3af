"""Write data/example.jsonl: `python environments/weather/generate.py [--seed 1] [--rows 24]`."""

from __future__ import annotations

import random
from typing import Any

from gymbox_sandbox.generator import call_item, message_item, write_dataset

GET_WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "Tell the weather in a city now.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "description": "Name of the city."}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}
CITIES = [
    "Amsterdam", "Athens", "Auckland", "Bogotá", "Cairo", "Chicago", "Dakar", "Hanoi", "Helsinki", "Istanbul",
    "Jakarta", "Kyoto", "Lima", "Lisbon", "Montréal", "Mumbai", "Nairobi", "New York", "Oslo", "Perth", "Prague",
    "Quito", "Reykjavík", "San Francisco", "São Paulo", "Seoul", "Toronto", "Tunis", "Vienna", "Zürich",
]  # fmt: skip
CONDITIONS = ("sunny", "cloudy", "rainy", "snowy", "foggy", "stormy")
QUESTIONS = (
    ("What is the temperature in {city} right now?", ("temperature_c",)),
    ("How humid is it in {city}? Give the figure in percent.", ("humidity_percent",)),
    (
        "I am flying to {city} today. How warm is it in °C, and is it sunny, rainy or what?",
        ("temperature_c", "condition"),
    ),
    ("How strong is the wind in {city}, in km/h?", ("wind_kmh",)),
    ("Do I need an umbrella in {city}? Say what the conditions are.", ("condition",)),
    ("Give me the full weather report for {city}.", ("temperature_c", "condition", "humidity_percent", "wind_kmh")),
)
SENTENCES = {
    "temperature_c": "It is {value} °C in {city}.",
    "condition": "The conditions are {value}.",
    "humidity_percent": "The humidity is {value}%.",
    "wind_kmh": "The wind blows at {value} km/h.",
}
INSTRUCTIONS = "You are a helpful assistant. Look the weather up; answer with the figures and units that you found."


def rows(seed: int, count: int) -> list[dict[str, Any]]:
    """`count` tasks, the same for the same seed."""
    draw = random.Random(seed)
    return [row(index, draw) for index in range(count)]


def row(index: int, draw: random.Random) -> dict[str, Any]:
    cities = draw.sample(CITIES, 5)
    city = cities[0]
    weather = {name: report(draw) for name in sorted(cities)}
    question, asked = QUESTIONS[index % len(QUESTIONS)]
    facts = {fact: weather[city][fact] for fact in asked}
    return {
        "id": f"weather-{index:03d}",
        "weather": weather,
        "responses_create_params": {
            "input": [
                {"role": "developer", "content": INSTRUCTIONS},
                {"role": "user", "content": question.format(city=city)},
            ],
            "tools": [GET_WEATHER],
        },
        "verifier_metadata": {"city": city, "facts": facts},
        "gold_replies": gold(city, facts),
    }


def report(draw: random.Random) -> dict[str, Any]:
    """What the tool tells about one city; the numbers do not repeat those of the other fields."""
    condition = draw.choice(CONDITIONS)
    temperature = draw.randint(-15, 2) if condition == "snowy" else draw.randint(3, 38)
    return {
        "condition": condition,
        "temperature_c": temperature,
        "humidity_percent": draw.randint(39, 97),
        "wind_kmh": draw.randint(1, 60),
    }


def gold(city: str, facts: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """What a model says, a list of output items a turn, to do the task right."""
    text = " ".join(SENTENCES[fact].format(value=value, city=city) for fact, value in facts.items())
    return [[call_item("look", "get_weather", {"city": city})], [message_item(text)]]


if __name__ == "__main__":
    write_dataset(rows, beside=__file__)
