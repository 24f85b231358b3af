"""Weather: one tool call, then an answer that states what the tool said."""

import re
import unicodedata
from difflib import get_close_matches
from typing import Any

from gymbox_sandbox import ResourcesServer, Response, Task, ToolError, tool

CONDITIONS = {
    "sunny": ("sunny", "sunshine"),
    "cloudy": ("cloudy", "clouds", "overcast"),
    "rainy": ("rain", "raining", "rainy", "rains"),
    "snowy": ("snow", "snowing", "snowy", "snows"),
    "foggy": ("fog", "foggy", "mist", "misty"),
    "stormy": ("storm", "storms", "stormy", "thunderstorm", "thunderstorms"),
}
"""Each condition with the words that state it."""
UNITS = {
    "temperature_c": r"(?:[°º]\s*c?|c|celsius|degrees?)(?!\s*f(?:ahrenheit)?\b)",
    "humidity_percent": r"%|percent|per cent",
    "wind_kmh": r"km\s*/\s*h|kmh|km\s*per\s*hour|kph|kilomet(?:er|re)s?\s*(?:per|an)\s*hour",
}
"""Each number with the ways to write its unit."""
FAHRENHEIT = r"(?:[°º]|degrees?)?\s*f(?:ahrenheit)?"
NUMBER = r"(?<![\w.])(-?\d+(?:\.\d+)?)"
ALIASES = {"sf": "san francisco", "nyc": "new york", "new york city": "new york", "la": "los angeles"}


class Weather(ResourcesServer):
    """The row's `weather` has a report for each city that the tool knows; a row without it knows every city."""

    async def reset(self, task: Task) -> None:
        reports: dict[str, dict[str, Any]] | None = getattr(task, "weather", None)
        self.reports = reports and {city_key(city): (city, report) for city, report in reports.items()}
        self.asked: set[str] = set()

    @tool
    async def get_weather(self, city: str) -> dict[str, Any]:
        """Tell the weather in a city now.

        Args:
            city: Name of the city.
        """
        if self.reports is None:
            self.asked.add(city_key(city))
            return {"city": city, "weather_description": f"The weather in {city} is cold."}
        if city_key(city) not in self.reports:
            near = get_close_matches(city_key(city), self.reports, n=1)
            hint = f"; did you mean {self.reports[near[0]][0]!r}?" if near else ""
            raise ToolError(f"there is no weather report for {city!r}{hint}")
        self.asked.add(city_key(city))
        name, report = self.reports[city_key(city)]
        return {"city": name, **report}

    async def verify(self, task: Task, response: Response) -> bool:
        """The right city was asked about, and the final answer states each fact in `verifier_metadata`.

        A row without `verifier_metadata` asks for nothing that could be checked: any completed answer satisfies it.
        """
        answer = response.output_text
        if not answer.strip() or response.incomplete_details is not None:
            return False
        if not task.verifier_metadata:
            return True
        facts = task.verifier_metadata["facts"]
        asked = city_key(task.verifier_metadata["city"]) in self.asked
        return asked and all(states(answer, fact, value) for fact, value in facts.items())


def city_key(city: str) -> str:
    """What two spellings of a city have in common: no case, accents, punctuation or country."""
    plain = unicodedata.normalize("NFKD", city.split(",")[0]).encode("ascii", "ignore").decode()
    key = " ".join(re.findall(r"[a-z]+", plain.lower()))
    return ALIASES.get(key, key)


def states(answer: str, fact: str, value: str | int) -> bool:
    """Whether `answer` says that `fact` is `value`, without hedging: naming every possibility states nothing."""
    if fact == "condition":
        words = set(re.findall(r"[a-z]+", answer.lower()))
        named = [name for name, synonyms in CONDITIONS.items() if words.intersection(synonyms)]
        return value in named and len(named) <= 2
    return numbers(answer, fact) == {float(value)}


def numbers(answer: str, fact: str) -> set[float]:
    """The numbers in `answer` that have the unit of `fact`; where none has, those that have no unit at all."""
    text = re.sub(r"\b(?:minus|negative)\s+(?=\d)|[−–](?=\d)", "-", answer.lower())
    any_unit = "|".join([*UNITS.values(), FAHRENHEIT])
    with_unit = re.findall(rf"{NUMBER}[\s-]*(?:{UNITS[fact]})(?!\w)", text)
    without = re.findall(rf"{NUMBER}(?![\d.]*[\s-]*(?:{any_unit})(?!\w))(?![\w.]*\d)", text)
    return {float(number) for number in with_unit or without}
