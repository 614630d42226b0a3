"""Addresses: what may name an agent, and the refusals that say why not."""

import unicodedata

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.core.strategies import NAMES, TYPE_NAMES
from think_celery.core.address import NAME_LIMIT, Address, check_type_name
from think_celery.errors import InvalidInput


@given(TYPE_NAMES, NAMES)
def test_every_acceptable_address_is_read_back_from_its_text(type_name: str, name: str) -> None:
    address = Address(type_name, name)
    assert (address.type_name, address.name) == (type_name, name)
    assert Address.parse(str(address)) == address


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("", "must not be blank"),
        (" \N{NO-BREAK SPACE}\N{EM SPACE}", "must not be blank"),
        ("x" * 201, "is 201 characters long, at most 200 are accepted"),
        ("a\x1fb", "contains the control character U+001F; remove it"),
        ("a\x00", "contains the control character U+0000; remove it"),
        ("two\nlines", "contains the control character U+000A; remove it"),
        ("\x7f", "contains the control character U+007F; remove it"),
        ("a\x85b", "contains the control character U+0085; remove it"),
        ("half \ud83d", "contains the control character U+D83D; remove it"),
        (7, "must be text, not int"),
        (None, "must be text, not NoneType"),
        (b"alice", "must be text, not bytes"),
    ],
)
def test_a_bad_name_is_refused_with_its_reason(name: object, problem: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        Address("TaskAgent", name)  # type: ignore[arg-type]
    assert (caught.value.field, caught.value.problem) == ("agent name", problem)


@given(st.characters(categories=["Cc", "Cs"]))
def test_no_control_character_gets_into_a_name(character: str) -> None:
    with pytest.raises(InvalidInput, match=f"U\\+{ord(character):04X}"):
        Address("TaskAgent", f"a{character}b")


@pytest.mark.parametrize("name", ["*", "a:b", "a/b/c", "🦊", "..", "a b", "__proto__", "%2E", "x" * 200])
def test_unusual_names_are_names(name: str) -> None:
    assert Address.parse(f"TaskAgent/{name}").name == name


@pytest.mark.parametrize(
    "type_name", ["", " ", "Task Agent", "Task-Agent", "1Agent", "a.b", "Ägent", "a/b", 3, None]
)
def test_a_type_name_is_an_ascii_identifier(type_name: object) -> None:
    with pytest.raises(InvalidInput, match=r"agent type: .* is not an ASCII identifier such as TaskAgent"):
        check_type_name(type_name)


def test_a_type_name_has_at_most_100_characters() -> None:
    assert check_type_name("A" * 100) == "A" * 100
    with pytest.raises(InvalidInput, match="is 101 characters long, at most 100 are accepted"):
        check_type_name("A" * 101)


def test_the_text_form_needs_its_slash() -> None:
    with pytest.raises(
        InvalidInput, match="'TaskAgent' is not of the form Type/name, such as TaskAgent/alice"
    ):
        Address.parse("TaskAgent")
    with pytest.raises(InvalidInput, match="agent name: must not be blank"):
        Address.parse("TaskAgent/")


def test_names_are_not_normalised() -> None:
    composed, decomposed = (unicodedata.normalize(form, "é") for form in ("NFC", "NFD"))
    assert Address("TaskAgent", composed) != Address("TaskAgent", decomposed)


def test_addresses_sort_by_type_then_name() -> None:
    assert sorted([Address("B", "a"), Address("A", "b"), Address("A", "a")]) == [
        Address("A", "a"),
        Address("A", "b"),
        Address("B", "a"),
    ]


LONG_NAMES = st.builds(lambda text, times: (text * times)[:NAME_LIMIT], NAMES, st.integers(1, 50)).filter(
    str.strip
)
AWKWARD_NAMES = st.text("/%2F5~ab\N{FOX FACE}é", min_size=1, max_size=8)
PATHS = st.lists(st.tuples(TYPE_NAMES, AWKWARD_NAMES | NAMES | LONG_NAMES), min_size=1, max_size=4)


def at(path: list[tuple[str, str]]) -> Address:
    """Return the agent at the end of a path from parent to child."""
    address = Address(*path[0])
    for step in path[1:]:
        address = address.child(*step)
    return address


@given(PATHS)
def test_a_path_of_any_depth_is_an_address(path: list[tuple[str, str]]) -> None:
    address = at(path)
    assert address == at(path), "always the same"
    assert address.type_name == path[-1][0]
    assert len(address.name) <= NAME_LIMIT
    assert Address.parse(str(address)) == address
    assert address.parent == (str(at(path[:-1])) if len(path) > 1 else None)


@given(PATHS, PATHS)
def test_two_paths_are_two_addresses(one: list[tuple[str, str]], other: list[tuple[str, str]]) -> None:
    assume(len(one) > 1 and len(other) > 1)  # a name given from outside may be any path
    assert (at(one) == at(other)) == (one == other)


# The same characters in other places: what a careless join would take for one.
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([("P", "a/b"), ("C", "c")], [("P", "a"), ("C", "b/c")]),
        ([("P", "a%2Fb"), ("C", "c")], [("P", "a/b"), ("C", "c")]),
        ([("P", "a%"), ("C", "2Fb")], [("P", "a"), ("C", "%2Fb")]),
        ([("P", "a"), ("C", "b"), ("C", "c")], [("P", "a"), ("C", "b/c")]),
        ([("P", "a"), ("C", "b"), ("C", "c")], [("P", "a/b"), ("C", "c")]),
        ([("P", "a"), ("P", "a")], [("P", "a/a"), ("P", "a")]),
        ([("P", "x" * 200), ("C", "y" * 200)], [("P", "x" * 199 + "z"), ("C", "y" * 200)]),
        ([("P", "x" * 200), ("C", "c")], [("P", "z" + "x" * 199), ("C", "c")]),
        ([("P", "é"), ("C", "c")], [("P", "e\u0301"), ("C", "c")]),
    ],
)
def test_paths_that_look_alike(one: list[tuple[str, str]], other: list[tuple[str, str]]) -> None:
    assert at(one) != at(other)


def test_a_long_path_keeps_its_end_for_people() -> None:
    address = at([("Customer", "x" * 200), ("Courier", "c-7")])
    assert address.name.startswith("~")
    assert address.name.endswith("/c-7")
    assert not at([("P", "a"), ("C", "b")]).name.startswith("~"), "so the two kinds never meet"


def test_the_parent_is_no_part_of_who_it_is() -> None:
    child = Address("P", "a").child("C", "b")
    plain = Address("C", "P/a/b")
    assert (child, hash(child), repr(child)) == (plain, hash(plain), repr(plain))
    assert (child.parent, plain.parent) == ("P/a", None)
