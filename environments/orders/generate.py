"""Write data/example.jsonl: `python environments/orders/generate.py [--seed 1] [--rows 24]`."""

from __future__ import annotations

import copy
import random
from typing import Any

from gymbox_sandbox.generator import call_item, message_item, write_dataset

SQL = {
    "type": "function",
    "name": "sql",
    "description": "Run one SQL statement on the shop's PostgreSQL database and return its rows, 50 at most.",
    "parameters": {
        "type": "object",
        "properties": {"statement": {"type": "string", "description": "One SQL statement."}},
        "required": ["statement"],
        "additionalProperties": False,
    },
    "strict": True,
}
ABOUT = (
    "You look after a shop's PostgreSQL database. Its tables are customers (id, name, city), products (id, name, "
    "price in cents, stock) and orders (id, customer, product, quantity, status: open, shipped or cancelled). Change "
    "what is asked for and nothing else."
)
CITIES = ["Bergen", "Lisbon", "Osaka", "Quito"]
NAMES = ["Ada", "Bo", "Chen", "Dora", "Emil", "Fay", "Gus", "Hana"]
PRODUCTS = ["kettle", "lamp", "rug", "chair", "clock", "vase"]

Tables = dict[str, list[dict[str, Any]]]


def rows(seed: int, count: int) -> list[dict[str, Any]]:
    """`count` tasks, the same for the same seed; none is done by leaving the shop as it is."""
    draw = random.Random(seed)
    return [row(index, draw) for index in range(count)]


def row(index: int, draw: random.Random) -> dict[str, Any]:
    make = [restocking, cancelling, forgetting, raising][index % 4]
    while True:
        before = shop(draw)
        after = copy.deepcopy(before)
        request, statements = make(draw, after)
        if after != before:
            break
    calls = [[call_item(f"sql_{number}", "sql", {"statement": each})] for number, each in enumerate(statements)]
    messages = [{"role": "system", "content": ABOUT}, {"role": "user", "content": request}]
    return {
        "id": f"orders-{index:03d}",
        "tables": before,
        "verifier_metadata": {"tables": after},
        "responses_create_params": {"input": messages, "tools": [SQL]},
        "gold_replies": [*calls, [message_item("It is done.")]],
    }


def shop(draw: random.Random) -> Tables:
    """A shop with some of everything."""
    customers = [{"id": id, "name": name, "city": draw.choice(CITIES)} for id, name in enumerate(NAMES, 1)]
    products = [
        {"id": id, "name": name, "price": draw.randint(5, 90) * 100, "stock": draw.randint(0, 12)}
        for id, name in enumerate(PRODUCTS, 1)
    ]
    orders = [
        {
            "id": id,
            "customer": draw.randint(1, len(NAMES) - 2),
            "product": draw.randint(1, len(PRODUCTS)),
            "quantity": draw.randint(1, 5),
            "status": draw.choice(["open", "open", "shipped", "cancelled"]),
        }
        for id in range(1, draw.randint(10, 16))
    ]
    return {"customers": customers, "products": products, "orders": orders}


def restocking(draw: random.Random, tables: Tables) -> tuple[str, list[str]]:
    """Products that run low."""
    low, full = draw.randint(3, 6), draw.randint(15, 30)
    for product in tables["products"]:
        if product["stock"] < low:
            product["stock"] = full
    request = f"Bring every product of which fewer than {low} are in stock up to {full} in stock."
    return request, [f"update products set stock = {full} where stock < {low}"]


def cancelling(draw: random.Random, tables: Tables) -> tuple[str, list[str]]:
    """The open orders of a city, whose goods go back."""
    city = draw.choice(CITIES)
    there = {customer["id"] for customer in tables["customers"] if customer["city"] == city}
    for order in tables["orders"]:
        if order["customer"] in there and order["status"] == "open":
            order["status"] = "cancelled"
            tables["products"][order["product"] - 1]["stock"] += order["quantity"]
    request = f"Cancel all open orders of customers in {city} and put what they had ordered back in stock."
    chosen = f"status = 'open' and customer in (select id from customers where city = '{city}')"
    back = f"select product, sum(quantity) as quantity from orders where {chosen} group by product"
    return request, [
        f"update products set stock = stock + back.quantity from ({back}) as back where products.id = back.product",
        f"update orders set status = 'cancelled' where {chosen}",
    ]


def forgetting(draw: random.Random, tables: Tables) -> tuple[str, list[str]]:
    """Customers without orders, in all cities but one."""
    spared = draw.choice(CITIES)
    ordered = {order["customer"] for order in tables["orders"]}
    tables["customers"][:] = [
        customer for customer in tables["customers"] if customer["id"] in ordered or customer["city"] == spared
    ]
    request = f"Delete the customers who have never ordered anything, but keep those in {spared}."
    return request, [
        f"delete from customers where city <> '{spared}' and id not in (select customer from orders)",
    ]


def raising(draw: random.Random, tables: Tables) -> tuple[str, list[str]]:
    """The prices of what sells best."""
    percent = draw.choice([10, 20, 50])
    sold: dict[int, int] = {}
    for order in tables["orders"]:
        if order["status"] != "cancelled":
            sold[order["product"]] = sold.get(order["product"], 0) + order["quantity"]
    most = max(sold.values())
    for product in tables["products"]:
        if sold.get(product["id"]) == most:
            product["price"] = product["price"] * (100 + percent) // 100
    request = (
        f"Raise the price of the product that sells best by {percent} percent: the one with the greatest quantity in "
        "orders that are not cancelled. Where several share that place, raise each."
    )
    sums = "select product, sum(quantity) as sold from orders where status <> 'cancelled' group by product"
    return request, [
        f"with sums as ({sums}) update products set price = price * {100 + percent} / 100 "
        "where id in (select product from sums where sold = (select max(sold) from sums))"
    ]


if __name__ == "__main__":
    write_dataset(rows, beside=__file__)
