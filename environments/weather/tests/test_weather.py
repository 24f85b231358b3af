"""Weather scores an answer that states the right city's facts, however it is put."""

from __future__ import annotations

import pytest

LISBON = {"condition": "rainy", "temperature_c": 14, "humidity_percent": 83, "wind_kmh": 12}
OSLO = {"condition": "snowy", "temperature_c": -3, "humidity_percent": 70, "wind_kmh": 5}


def row(city: str = "Lisbon", **facts: object) -> dict[str, object]:
    return {"weather": {"Lisbon": LISBON, "Oslo": OSLO}, "verifier_metadata": {"city": city, "facts": facts}}


async def test_the_facts_without_having_looked_do_not_score(play, rows) -> None:
    for task in rows:
        game = await play(task)
        game.output = [item for item in task["gold_replies"][-1]]
        assert await game.reward() == 0.0, task["id"]


async def test_looking_up_another_city_does_not_score(play) -> None:
    game = await play(row(temperature_c=14))
    await game.call("get_weather", city="Oslo")
    game.say("It is 14 °C.")
    assert await game.reward() == 0.0


@pytest.mark.parametrize("spelling", ["lisbon", "LISBON", " Lisbon ", "Lisbon, Portugal", "Lisbón"])
async def test_a_city_is_found_however_it_is_spelled(play, spelling) -> None:
    game = await play(row(temperature_c=14))
    assert await game.call("get_weather", city=spelling) == {"city": "Lisbon", **LISBON}
    game.say("14 °C")
    assert await game.reward() == 1.0


async def test_an_unknown_city_is_an_error_that_names_the_nearest(play) -> None:
    game = await play(row(temperature_c=14))
    assert await game.call("get_weather", city="Lisbn") == (
        "there is no weather report for 'Lisbn'; did you mean 'Lisbon'?"
    )
    assert await game.call("get_weather", city="Qqq") == "there is no weather report for 'Qqq'"


@pytest.mark.parametrize(
    ("answer", "facts", "right"),
    [
        ("It is 14 °C.", {"temperature_c": 14}, True),
        ("**14°C** for now", {"temperature_c": 14}, True),
        ("It's a 14-degree day with 83% humidity.", {"temperature_c": 14, "humidity_percent": 83}, True),
        ("About 57 °F (14.0 degrees Celsius).", {"temperature_c": 14}, True),
        ("57 degrees Fahrenheit, that is 14 degrees.", {"temperature_c": 14}, True),
        ("The temperature is 14.", {"temperature_c": 14}, True),
        ("It is 14 °F.", {"temperature_c": 14}, False),
        ("It is 114 °C.", {"temperature_c": 14}, False),
        ("It is 14.5 °C.", {"temperature_c": 14}, False),
        ("It is -14 °C.", {"temperature_c": 14}, False),
        ("It is 13 °C or 14 °C.", {"temperature_c": 14}, False),
        ("The humidity is 14%.", {"temperature_c": 14}, False),
        ("Minus 3 degrees", {"temperature_c": -3}, True),
        ("−3°C", {"temperature_c": -3}, True),
        ("-3 °C", {"temperature_c": -3}, True),
        ("3 °C", {"temperature_c": -3}, False),
        ("Humidity: 83 percent", {"humidity_percent": 83}, True),
        ("Wind of 12 kilometers per hour", {"wind_kmh": 12}, True),
        ("Wind of 12 km/h at 14 °C", {"wind_kmh": 12}, True),
        ("Wind of 12 m/s, 13 km/h", {"wind_kmh": 12}, False),
        ("It is raining.", {"condition": "rainy"}, True),
        ("Rain, with some clouds.", {"condition": "rainy"}, False),
        ("No, you don't need an umbrella: it is rainy, 14 °C.", {"condition": "rainy", "temperature_c": 14}, True),
        ("It is rainy. Don’t forget your umbrella!", {"condition": "rainy"}, True),
        ("It is rainy in Lisbon. Anything else, say the wind in Porto?", {"condition": "rainy"}, True),
        ("In Lisbon, in Portugal, it is 14 °C.", {"temperature_c": 14}, True),
        ("In Celsius it is 14 degrees.", {"temperature_c": 14}, True),
        ("It is definitely not rainy.", {"condition": "rainy"}, False),
        ("It is definitely not rainy; it is sunny.", {"condition": "rainy"}, False),
        ("It isn't rainy.", {"condition": "rainy"}, False),
        ("It isn’t 14 °C.", {"temperature_c": 14}, False),
        ("It is 14 °C. That is wrong.", {"temperature_c": 14}, False),
        ("14 °C, sunny or rainy.", {"condition": "rainy", "temperature_c": 14}, False),
        ("It is not 14 °C; it is forty-two degrees.", {"temperature_c": 14}, False),
        ("It is 14 °C or forty-two degrees.", {"temperature_c": 14}, False),
        ("Is it 14 °C?", {"temperature_c": 14}, False),
        ("In Paris: 14 °C", {"temperature_c": 14}, False),
        ("In Oslo: 14 °C", {"temperature_c": 14}, False),
        ("It is 14 °C in Lisbon and OSLO.", {"temperature_c": 14}, False),
        ("The train leaves at noon.", {"condition": "rainy"}, False),
        ("It is sunny.", {"condition": "rainy"}, False),
        ("It is sunny, cloudy, rainy or snowy.", {"condition": "rainy"}, False),
        ("Rainy, 14 °C, 83%, 12 km/h", LISBON, True),
        ("Rainy, 14 °C, 83%", LISBON, False),
        ("   ", {"condition": "rainy"}, False),
    ],
)
async def test_an_answer_scores_if_it_states_each_fact_and_no_other(play, answer, facts, right) -> None:
    game = await play(row(**facts))
    await game.call("get_weather", city="Lisbon")
    game.say(answer)
    assert await game.reward() == float(right)


async def test_a_row_that_asks_for_nothing_checkable_takes_any_completed_answer(play) -> None:
    game = await play({})
    assert await game.call("get_weather", city="SF") == {
        "city": "SF",
        "weather_description": "The weather in SF is cold.",
    }
    assert await game.reward() == 0.0
    game.say("Which city do you mean?")
    assert await game.reward() == 1.0


def test_another_seed_gives_other_tasks(generate) -> None:
    assert generate.rows(1, 3) == generate.rows(1, 3) != generate.rows(2, 3)
