"""Our folding and the AI SDK's own reader make the same message of the same chunks.

Where they differ on purpose stands in `tests/data/golden_folding/differences.json`, each place with its
reason; anything else fails, and so does a listed difference that is none any more.
"""

import json
from collections import Counter
from typing import Any

import pytest

from tests.golden import record
from tests.golden.node import HERE
from tests.golden.reading import ABSENT, SPLITS, TABLE, Read, differences, json_of, read, recordings

RECORDINGS = recordings()
GROUPS: list[dict[str, Any]] = json.loads(TABLE.read_text(encoding="utf-8"))
Places = set[tuple[str, str, str]]


@pytest.fixture(scope="module")
def found() -> dict[str, list[Read]]:
    """Every recording and its splits, read by both; Node starts once."""
    return read(RECORDINGS)


def listed(name: str, reader: str) -> Places:
    return {
        (place["path"], json_of(place.get("ours", ABSENT)), json_of(place.get("theirs", ABSENT)))
        for group in GROUPS
        if reader in group["readers"]
        for place in group["places"]
        if place["recording"] == name
    }


def places(ours: dict[str, Any], theirs: dict[str, Any]) -> Places:
    return {(path, json_of(mine), json_of(other)) for path, mine, other in differences(ours, theirs)}


@pytest.mark.parametrize("name", RECORDINGS)
def test_both_readers_build_the_same_message(name: str, found: dict[str, list[Read]]) -> None:
    whole = found[name][0]
    assert places(whole.ours, whole.theirs) == listed(name, "recording")


@pytest.mark.parametrize("name", RECORDINGS)
def test_a_client_of_the_stream_builds_the_message_that_is_stored(
    name: str, found: dict[str, list[Read]]
) -> None:
    whole = found[name][0]
    assert places(whole.ours, whole.clients) == listed(name, "stream")


@pytest.mark.parametrize("name", RECORDINGS)
def test_a_client_that_comes_late_builds_the_message_that_is_stored(
    name: str, found: dict[str, list[Read]]
) -> None:
    whole = found[name][0]
    assert places(whole.ours, whole.late) == listed(name, "replay")


def test_no_cut_of_the_texts_changes_a_message(found: dict[str, list[Read]]) -> None:
    for name, (whole, *cut) in found.items():
        assert len(cut) == SPLITS
        for number, variant in enumerate(cut):
            assert variant == whole, f"{name} {number}"


def test_the_table_is_well_formed() -> None:
    assert {reader for group in GROUPS for reader in group["readers"]} == {"recording", "stream", "replay"}
    assert all(group["reason"] for group in GROUPS)
    entries = Counter(
        (reader, place["recording"], place["path"])
        for group in GROUPS
        for place in group["places"]
        for reader in group["readers"]
    )
    assert set(entries.values()) == {1}
    assert {name for _, name, _ in entries} <= RECORDINGS.keys()


def test_the_recordings_of_the_loop_are_what_it_emits() -> None:
    assert len(RECORDINGS) >= 40
    scripts = record.scripts()
    assert scripts.keys() == {name for name in RECORDINGS if name.startswith("loop-")}
    for name, answering in scripts.items():
        assert record.record(answering) == RECORDINGS[name].chunks, "python -m tests.golden.record"


def test_the_other_reader_is_locked() -> None:
    lock = json.loads((HERE / "package-lock.json").read_text())["packages"]
    wanted = json.loads((HERE / "package.json").read_text())["dependencies"]
    assert lock["node_modules/ai"]["version"] == wanted["ai"]
    assert wanted["ai"].startswith("7.")
    assert all(entry["integrity"] and "resolved" not in entry for name, entry in lock.items() if name)
