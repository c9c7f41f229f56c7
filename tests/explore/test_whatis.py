"""The value behind a sign, from a table and from a spec, as its command prints it."""

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from click.testing import CliRunner

import featstore
from featstore.api import compact
from featstore.base.errors import InputError, SelectionError
from featstore.explore.whatis import whatis
from featstore.spec.value_names import short_sign
from featstore.tools.cli.program import cli, main

DOCUMENT: dict[str, Any] = {
    "spec": 1,
    "inputs": {"user": "string", "items": "list<string>", "item": "string", "ts": "timestamp"},
    "slots": [
        {"slot": 1, "name": "user_slot", "op": "hash", "of": "user"},
        {"slot": 2, "name": "item_slot", "op": "hash", "of": "item"},
        {"slot": 3, "name": "items_slot", "op": "hash", "of": "items", "share_slot": 2},
        {"slot": 4, "name": "hour", "op": "hour", "of": "ts"},
    ],
}


def extract_day(path: Path, day: str, users: list[str], **changes: Any) -> None:
    rows = {
        "user": users,
        "item": ["shoe"] * len(users),
        "items": [["hat"]] * len(users),
        "ts": pa.array([0] * len(users), pa.timestamp("us", "UTC")),
    }
    pq.write_table(pa.table(rows), path / "raw.parquet")
    spec = featstore.load_spec(DOCUMENT | changes)
    featstore.extract(spec, path / "raw.parquet", path / "table", partition={"dt": day})


@pytest.fixture
def table(tmp_path: Path) -> str:
    extract_day(tmp_path, "1", ["ann", "bob"])
    extract_day(tmp_path, "2", ["ann", "cem", "ann"])
    return str(tmp_path / "table")


def sign_of(slot: str, **row: Any) -> int:
    default = {"user": None, "item": None, "items": None, "ts": None}
    sign = featstore.Extractor(featstore.load_spec(DOCUMENT)).one(default | row)[slot]
    assert isinstance(sign, int)
    return sign


def test_a_sign_of_a_table_is_the_value_that_extraction_saw_in_any_partition(table: str) -> None:
    for user, count in (("ann", 3), ("bob", 1), ("cem", 1)):
        (found,) = whatis(sign_of("user_slot", user=user), table_url=table).values
        assert (found.slot, found.text, found.count) == ("user_slot", user, count)


def test_slots_that_share_signs_know_each_others_values(table: str) -> None:
    for item in ("shoe", "hat"):
        found = whatis(sign_of("item_slot", item=item), table_url=table)
        assert [(value.slot, value.text) for value in found.values] == [
            ("item_slot", item),
            ("items_slot", item),
        ]


def test_a_text_finds_its_signs_which_a_where_takes(table: str) -> None:
    found = whatis(text="shoe", table_url=table, slot="item_slot")
    sign = sign_of("item_slot", item="shoe")
    assert [(value.sign, value.slot) for value in found.values] == [(sign, "item_slot")]
    assert str(found).startswith(f"{sign}: item_slot = shoe (counted ")
    rows = featstore.open_table(table).to_arrow(where=f"item_slot = {sign}")
    assert set(rows["item_slot"].to_pylist()) == {sign}
    assert len(whatis(text="shoe", table_url=table).values) == 2


def test_a_text_is_found_whole_and_otherwise_it_is_said_what_computes_signs(table: str) -> None:
    found = whatis(text="sho", table_url=table)
    assert found.values == ()
    assert "no known sign has this text" in str(found)
    assert "an Extractor of the spec computes the sign" in str(found)


@pytest.mark.parametrize(
    ("value", "kept"), [("", '""'), ("a\tb", "a\\tb"), ("long " * 30, f"{('long ' * 30)[:99]}…")]
)
def test_a_text_that_is_shown_differently_is_found_as_it_is_and_as_it_is_shown(
    value: str, kept: str, tmp_path: Path
) -> None:
    extract_day(tmp_path, "1", [value, "ann"])
    [found] = whatis(text=value, table_url=str(tmp_path / "table")).values
    assert (found.sign, found.slot, found.text) == (
        sign_of("user_slot", user=value),
        "user_slot",
        kept,
    )
    assert whatis(text=kept, table_url=str(tmp_path / "table")).values == (found,)


def test_a_renamed_slot_keeps_its_texts(tmp_path: Path, table: str) -> None:
    slots = [slot | {"name": f"new_{slot['name']}"} for slot in DOCUMENT["slots"]]
    extract_day(tmp_path, "3", ["dan"], slots=slots)
    assert str(whatis(sign_of("user_slot", user="bob"), table_url=table)) == (
        "new_user_slot = bob (counted 1 times)"
    )


def test_texts_of_a_replaced_partition_are_gone_and_those_of_an_older_version_are_not(
    tmp_path: Path, table: str
) -> None:
    bob = sign_of("user_slot", user="bob")
    extract_day(tmp_path, "1", ["eve"])
    assert whatis(bob, table_url=table).values == ()
    assert whatis(bob, table_url=table, version=1).values[0].text == "bob"


@pytest.mark.parametrize("key", [None, "id"])
def test_slots_of_a_group_have_texts_also_after_they_are_folded_in(
    key: str | None, tmp_path: Path
) -> None:
    """Whether rows are matched by the raw files or by a key."""
    ids = [f"{i}" for i in range(20)]
    pq.write_table(pa.table({"id": ids, "a": ids, "b": ids[::-1]}), tmp_path / "raw.parquet")
    slots = [
        {"slot": 1, "name": "one", "op": "hash", "of": "a"},
        {"slot": 2, "name": "two", "op": "cross", "of": ["a", "b"]},
    ]
    types = {"id": "string", "a": "string", "b": "string"}
    url = str(tmp_path / "table")
    runs: list[tuple[int, dict[str, Any]]] = [(1, {}), (2, {"group": "more", "key": key})]
    for number, options in runs:
        spec = featstore.load_spec(
            {"spec": 1, "inputs": types, "keep": ["id"], "slots": slots[:number]}
        )
        raw = tmp_path / "raw.parquet"
        featstore.extract(spec, raw, url, partition={"dt": "1"}, **options)
    signs = featstore.Extractor(spec).one({"id": "x", "a": "3", "b": "16"})

    def texts() -> list[str]:
        return [str(whatis(int(str(signs[name])), table_url=url)) for name in ("one", "two")]

    expected = ["one = 3 (counted 1 times)", "two = 3 & 16 (counted 1 times)"]
    assert texts() == expected
    compact(url)
    assert texts() == expected


def test_the_command_prints_the_value_or_says_that_it_is_not_known(
    tmp_path: Path, table: str
) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text(yaml.safe_dump(DOCUMENT))
    hour = featstore.Extractor(featstore.load_spec(DOCUMENT)).one(
        {
            "user": None,
            "item": None,
            "items": None,
            "ts": pa.scalar(0, pa.timestamp("us", "UTC")).as_py(),
        }
    )["hour"]
    run = CliRunner().invoke
    found = run(cli, ["whatis", str(hour), "--spec", str(spec)])
    assert (found.exit_code, found.output) == (0, "hour = 00:00\n")
    found = run(cli, ["whatis", str(hour), "--table", table, "--spec", str(spec), "--json"])
    assert json.loads(found.output) == {
        "sign": hour,
        "prefix": None,
        "values": [{"sign": hour, "slot": "hour", "text": "00:00", "count": 5}],
        "of_text": None,
    }
    found = run(cli, ["whatis", "--text", "00:00", "--spec", str(spec)])
    assert (found.exit_code, found.output) == (0, f"{hour}: hour = 00:00\n")
    found = run(cli, ["whatis", str(hour), "--table", table, "--slot", "user_slot"])
    assert found.exit_code == 1
    assert found.output.startswith(f"{hour}: not known: a sign of another table or slot")


@pytest.mark.parametrize(("given", "found"), [([], "neither"), (["7", "--text", "ann"], "both")])
def test_it_takes_a_sign_or_a_text(
    given: list[str], found: str, table: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(sys, "argv", ["featstore", "whatis", *given, "--table", table])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert f"expected a sign or a text, found {found}" in capsys.readouterr().err


@pytest.mark.parametrize("cut", ["{}…", "{}...", "{}"])
def test_a_short_sign_as_profiles_print_it_lists_the_signs_that_begin_so(
    cut: str, table: str
) -> None:
    signs = {user: sign_of("user_slot", user=user) for user in ("ann", "bob", "cem")}
    for user, count in (("ann", 3), ("bob", 1)):
        given = cut.format(short_sign(signs[user]).removesuffix("…"))
        found = CliRunner().invoke(cli, ["whatis", given, "--table", table])
        assert found.exit_code == 0
        assert found.output == f"{signs[user]}: user_slot = {user} (counted {count} times)\n"


def test_all_signs_that_begin_so_are_listed(tmp_path: Path) -> None:
    users = [f"u{i}" for i in range(50)]
    extract_day(tmp_path, "1", users)
    signs = {sign_of("user_slot", user=user): user for user in users}
    first = str(next(iter(signs)))[0]
    expected = sorted((sign, user) for sign, user in signs.items() if str(sign).startswith(first))
    assert len(expected) > 1
    found = whatis(f"{first}…", table_url=str(tmp_path / "table"), slot="user_slot")
    assert (found.sign, found.prefix) == (None, first)
    assert [(value.sign, value.text) for value in found.values] == expected
    assert len(str(found).splitlines()) == len(expected)


def test_an_index_that_is_known_is_meant_before_signs_that_begin_with_it(tmp_path: Path) -> None:
    slot = {"slot": 1, "name": "size", "op": "bucketize", "of": "x", "encode": "index"}
    slots = [slot | {"boundaries": list(range(30))}]
    spec = tmp_path / "spec.yaml"
    document = {"spec": 1, "inputs": {"x": "double"}, "slots": slots}
    spec.write_text(yaml.safe_dump(document))
    assert [value.sign for value in whatis("2", spec_url=str(spec)).values] == [2]
    found = [value.sign for value in whatis("2...", spec_url=str(spec)).values]
    assert found == [2, *range(20, 30)]
    # A number is never a prefix.
    assert whatis(40, spec_url=str(spec)).prefix is None


def test_short_signs_that_nobody_knows_say_so(table: str) -> None:
    run = CliRunner().invoke
    found = run(cli, ["whatis", "1234567…", "--table", table])
    assert found.exit_code == 1
    assert found.output.startswith("1234567…: no known sign begins with these digits: a sign of")
    found = run(cli, ["whatis", "1234567", "--table", table])
    assert found.exit_code == 1
    assert found.output.startswith("1234567: not known: a sign of another table or slot")
    assert found.output.endswith("no known sign begins with these digits either\n")


@pytest.mark.parametrize("text", ["0", "x", "…", "12.", "-1", str(2**63)])
def test_what_is_no_sign_is_refused(text: str, table: str) -> None:
    with pytest.raises(InputError, match=r"sign: expected a number from 1 to .*, found"):
        whatis(text, table_url=table)


def test_a_table_without_texts_knows_none(tmp_path: Path) -> None:
    extract_day(tmp_path, "1", ["ann"], values="none")
    assert whatis(sign_of("user_slot", user="ann"), table_url=str(tmp_path / "table")).values == ()


def test_what_is_asked_for_must_be_said_and_exist(table: str) -> None:
    with pytest.raises(InputError, match="expected a table or a spec that has the sign, found"):
        whatis(1)
    with pytest.raises(SelectionError, match=r"no slot 'usr_slot' that holds ids.*user_slot"):
        whatis(1, table_url=table, slot="usr_slot")
