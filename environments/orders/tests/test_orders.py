"""The tasks of the shop: what they ask for, and that none is done already."""

from __future__ import annotations


def test_no_task_is_done_by_leaving_the_shop_as_it_is(rows) -> None:
    for task in rows:
        assert task["tables"] != task["verifier_metadata"]["tables"], task["id"]


def test_what_is_not_asked_for_stays(rows) -> None:
    for task in rows:
        before, after = task["tables"], task["verifier_metadata"]["tables"]
        changed = {table for table in before if before[table] != after[table]}
        request = task["responses_create_params"]["input"][-1]["content"]
        expected = {
            "Bring": {"products"},
            "Cance": {"orders", "products"},
            "Delet": {"customers"},
            "Raise": {"products"},
        }
        assert changed == expected[request[:5]], task["id"]


def test_a_cancelled_order_is_back_in_stock(rows) -> None:
    task = next(task for task in rows if task["responses_create_params"]["input"][-1]["content"].startswith("Cancel"))
    before, after = task["tables"], task["verifier_metadata"]["tables"]
    cancelled = [new for old, new in zip(before["orders"], after["orders"], strict=True) if old != new]
    assert cancelled and {order["status"] for order in cancelled} == {"cancelled"}
    back = sum(order["quantity"] for order in cancelled)
    assert sum(product["stock"] for product in after["products"]) == back + sum(
        product["stock"] for product in before["products"]
    )


def test_another_seed_gives_other_tasks(generate) -> None:
    assert generate.rows(1, 4) == generate.rows(1, 4) != generate.rows(2, 4)
