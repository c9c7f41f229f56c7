"""Diff: what a change of a spec means for values."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from featstore.base.errors import SpecError
from featstore.spec.diff import diff

SLOTS: list[dict[str, Any]] = [
    {"slot": 1, "name": "u", "op": "hash", "of": "user"},
    {"slot": 2, "name": "bin", "op": "bucketize", "of": "price", "boundaries": [1, 2]},
    {"slot": 3, "name": "u_bin", "op": "cross", "of": ["u", "bin"]},
    {"slot": 4, "name": "price_log", "op": "log1p", "of": "price"},
]


def diff_of(tmp_path: Path, slots: list[dict[str, Any]]) -> list[str]:
    for name, nodes in (("old", SLOTS), ("new", slots)):
        document = {"spec": 1, "inputs": {"user": "string", "price": "double"}, "slots": nodes}
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(document))
    return [
        " ".join(line.split())
        for line in str(
            diff(*(str(tmp_path / f"{name}.yaml") for name in ("old", "new")))
        ).splitlines()
    ]


def test_an_inner_change_reaches_every_slot_made_of_it(tmp_path: Path) -> None:
    changed = [entry | {"boundaries": [1, 3]} if entry["slot"] == 2 else entry for entry in SLOTS]
    assert diff_of(tmp_path, changed) == ["changed 2 bin", "changed 3 u_bin"]


def test_added_removed_renamed_and_renumbered_slots_are_told_apart(tmp_path: Path) -> None:
    slots = [
        SLOTS[0] | {"name": "customer"},
        SLOTS[1],
        SLOTS[2] | {"of": ["customer", "bin"]},
        SLOTS[3] | {"slot": 6},
    ]
    slots.append({"slot": 5, "name": "user_2", "op": "hash", "of": "user"})
    assert diff_of(tmp_path, slots) == [
        "renamed 1 customer (was u)",
        "removed 4 price_log (now 6)",
        "added 5 user_2",
        "added 6 price_log (was 4)",
    ]


def test_equal_meanings_are_no_difference(tmp_path: Path) -> None:
    assert diff_of(tmp_path, SLOTS[::-1]) == [
        "no slot changes values, is added, removed or renamed"
    ]


def test_a_wrong_spec_is_not_compared(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"slots\[0\]\.of"):
        diff_of(tmp_path, [SLOTS[0] | {"of": "nobody"}])
