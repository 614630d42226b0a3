"""Declaring agents: names, the registry, and loading modules."""

import sys
from pathlib import Path
from typing import Any

import pytest

from think_celery import Think
from think_celery.agent import Registry, registry
from think_celery.core.address import Address
from think_celery.errors import DuplicateAgentType, InvalidInput, InvalidSettings, UnknownAgentType


def declare(name: str, **body: Any) -> type[Think]:
    return type(name, (Think,), {"__module__": f"declared_{name}", "__qualname__": name, **body})


@pytest.fixture(autouse=True)
def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_types", {})


def test_deriving_registers_under_the_class_name() -> None:
    agent = declare("OrderAgent")
    assert registry.get("OrderAgent") is agent
    assert registry.known() == ["OrderAgent"]
    assert agent(Address("OrderAgent", "a")).name == "a"


def test_a_type_name_may_be_given_and_is_not_inherited() -> None:
    parent = declare("Parent", type_name="orders_v1")
    child = type("Child", (parent,), {"__module__": "m"})
    assert registry.known() == ["Child", "orders_v1"]
    assert (registry.get("orders_v1"), registry.get("Child")) == (parent, child)


def test_a_base_is_no_agent() -> None:
    class Base(Think, abstract=True):
        """Shared by agents."""

    assert registry.known() == []
    assert Base.type_name == "Base"


@pytest.mark.parametrize("bad", ["", "a-b", "ü", "1a", "x" * 101])
def test_a_bad_type_name_is_refused_at_declaration(bad: str) -> None:
    with pytest.raises(InvalidInput, match="agent type"):
        declare("Named", type_name=bad)


def test_two_classes_of_one_name_are_refused() -> None:
    first = declare("Twin")
    with pytest.raises(DuplicateAgentType, match=r"declared_Twin\.Twin and other\.Twin"):
        declare("Twin", __module__="other")
    assert registry.get("Twin") is first


def test_the_same_class_declared_again_replaces_itself() -> None:
    declare("Reloaded")
    again = declare("Reloaded")
    assert registry.get("Reloaded") is again


def test_a_script_may_be_imported_again_under_its_own_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "script_agents.py").write_text(
        "from think_celery import Think\nclass Scripted2(Think):\n    pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    registry.load(["script_agents"])
    twin = sys.modules.pop("script_agents")
    monkeypatch.setitem(sys.modules, "other_name", twin)
    registry.get("Scripted2").__module__ = "other_name"
    registry.load(["script_agents"])
    assert registry.get("Scripted2").__module__ == "script_agents"


def test_an_unknown_type_lists_the_known_ones() -> None:
    declare("Alpha")
    with pytest.raises(UnknownAgentType, match=r"'Beta'.*Alpha"):
        registry.get("Beta")
    assert Registry().known() == []


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("import no_such_module_anywhere", "no_such_module_anywhere"),
        ("raise RuntimeError('half configured')", "RuntimeError: half configured"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("def broken(:", "SyntaxError"),
    ],
)
def test_a_module_that_cannot_be_imported_is_named_with_the_cause(
    body: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_agents.py").write_text(body)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(InvalidSettings) as caught:
        registry.load(["broken_agents"])
    assert "'broken_agents'" in str(caught.value)
    assert words in str(caught.value)


def test_a_fault_that_names_itself_passes_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    declare("Taken")
    (tmp_path / "taken_agents.py").write_text(
        "from think_celery import Think\nclass Taken(Think):\n    pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(DuplicateAgentType, match=r"taken_agents\.Taken"):
        registry.load(["taken_agents"])


def test_handles_know_their_agent() -> None:
    agent = declare("Handled")
    assert str(agent.handle("customer-42").address) == "Handled/customer-42"
    assert str(agent.async_handle("a/b").address) == "Handled/a/b"
    for bad in ("", " ", "x" * 201, "a\nb"):
        with pytest.raises(InvalidInput, match="agent name"):
            agent.handle(bad)
