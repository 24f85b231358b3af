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
NUMBER_WORD = (
    r"\b(?:zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|\w+teen"
    r"|twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety|hundred)"
)
DENIAL = r"\b(?:no|not|cannot|never|neither|nor|none|hardly|without|false|wrong|incorrect|untrue)\b|n['’]t\b"
HARMLESS = r"\bno,|\bno need\b|\b(?:do not|don['’]t|won['’]t|will not) (?:need|forget)\b"
"""Denials that deny nothing of the weather: whether one needs an umbrella is often asked."""
PLACE = r"\b(?:[Ii]n|[Ff]or|[Aa]t) (?!Celsius\b|Fahrenheit\b|C\b|F\b)[A-Z]\w+"
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
        city, facts = task.verifier_metadata["city"], task.verifier_metadata["facts"]
        others = (self.reports or {}).keys() - {city_key(city)}
        if city_key(city) not in self.asked or denies(answer) or names_another(answer, city, others):
            return False
        said = without_questions(answer)
        return all(states(said, fact, value) for fact, value in facts.items())


def city_key(city: str) -> str:
    """What two spellings of a city have in common: no case, accents, punctuation or country."""
    key = plain(city.split(",")[0])
    return ALIASES.get(key, key)


def plain(text: str) -> str:
    """The words of a text, without case, accents and punctuation."""
    letters = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    return " ".join(re.findall(r"[a-z]+", letters.lower()))


def denies(answer: str) -> bool:
    """Whether something is denied. What it is takes more than patterns to tell, so that nothing is stated then."""
    return re.search(DENIAL, re.sub(HARMLESS, "", answer.lower())) is not None


def names_another(answer: str, city: str, others: set[str]) -> bool:
    """Whether `answer` names one of the `others`, or some place while it does not name `city`."""

    def names(city: str) -> bool:
        key = city_key(city)
        spellings = [key, *(short for short, long in ALIASES.items() if long == key)]
        return any(f" {spelling} " in f" {plain(answer)} " for spelling in spellings)

    return any(map(names, others)) or (re.search(PLACE, answer) is not None and not names(city))


def without_questions(answer: str) -> str:
    """`answer` without the sentences that end in a question mark: they state nothing."""
    return re.sub(r"[^.!?;\n]*\?", "", answer)


def states(answer: str, fact: str, value: str | int) -> bool:
    """Whether `answer` says that `fact` is `value`, without hedging: naming two possibilities states nothing."""
    if fact == "condition":
        words = set(re.findall(r"[a-z]+", answer.lower()))
        named = [name for name, synonyms in CONDITIONS.items() if words.intersection(synonyms)]
        return named == [value]
    if re.search(rf"{NUMBER_WORD}[\s-]*(?:{UNITS[fact]})(?!\w)", answer.lower()):
        return False  # a second value, or the only one, in a form that is not read
    return numbers(answer, fact) == {float(value)}


def numbers(answer: str, fact: str) -> set[float]:
    """The numbers in `answer` that have the unit of `fact`; where none has, those that have no unit at all."""
    text = re.sub(r"\b(?:minus|negative)\s+(?=\d)|[−–](?=\d)", "-", answer.lower())
    any_unit = "|".join([*UNITS.values(), FAHRENHEIT])
    with_unit = re.findall(rf"{NUMBER}[\s-]*(?:{UNITS[fact]})(?!\w)", text)
    without = re.findall(rf"{NUMBER}(?![\d.]*[\s-]*(?:{any_unit})(?!\w))(?![\w.]*\d)", text)
    return {float(number) for number in with_unit or without}
