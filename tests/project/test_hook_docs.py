"""The examples of the page about hooks do what the page says."""

import re
from pathlib import Path
from typing import Any

from pydantic import BaseModel

import think_celery
from tests.engine.driving import ask, user
from think_celery import Think
from think_celery.testing import ToolCall, scripted_model

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "hooks.md").read_text(encoding="utf-8")


def examples() -> dict[str, Any]:
    """Run the page's Python, its agents left out of the registry."""
    code = "\n\n".join(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL))
    code = re.sub(r"class (\w+)\((Think|Support)\):", r"class \1(\2, abstract=True):", code)
    names: dict[str, Any] = {
        **{name: getattr(think_celery, name) for name in think_celery.__all__},
        "BaseModel": BaseModel,
        "search_orders": search_orders,
        "refund": refund,
        "__name__": "hook_docs",
    }
    exec(code, names)  # noqa: S102 - the project's own page
    return names


refunds: list[tuple[int, str]] = []


def search_orders() -> list[str]:
    """Find orders."""
    return ["tea"]


def refund(amount: int, note: str = "") -> str:
    """Pay back."""
    refunds.append((amount, note))
    return "paid"


def test_the_careful_agent_blocks_and_annotates() -> None:
    careful: type[Think] = examples()["Careful"]

    def refunding(amount: int) -> str:
        model = scripted_model(ToolCall("refund", {"amount": amount}), "ok")
        chosen = type("Careful", (careful,), {"get_model": lambda self: model}, abstract=True)
        return str(ask(chosen, user("Refund")).part("tool-refund")["output"])

    assert refunding(500).startswith("Refunds above 100 need a person.")
    assert refunds == []
    assert refunding(20) == "paid"
    assert refunds == [(20, "by a")]


def test_the_other_examples_are_agents() -> None:
    names = examples()
    assert names["Summariser"].output_type is names["Summary"]
    assert names["Support"].before_turn is not Think.before_turn


def test_every_hook_of_a_turn_is_on_the_page() -> None:
    methods = {
        name
        for name, value in vars(Think).items()
        if callable(value) and name.startswith(("before_", "after_", "on_", "repair_"))
    }
    of_schedules = {name for name in methods if name.startswith("on_schedule")}
    listed = set(re.findall(r"^\| `([a-z_]+)\(", PAGE, re.MULTILINE))
    assert listed == methods - of_schedules - {"on_chat_message"}
