"""`tables` of a training config: entries, weights, and what does not go with it."""

from typing import Any

import pytest

from featstore.base.errors import ConfigError
from featstore.dispatch.options import Dispatch
from featstore.loader.request.train_config import load_train_config, mixed_tables, table_names

TABLES = [{"table": "/a", "weight": 3}, {"table": "/b"}]


def mixed(**keys: Any) -> Any:
    return mixed_tables(load_train_config({"tables": TABLES, "slots": ["x"], **keys}))


def test_each_entry_becomes_the_arguments_of_a_loader() -> None:
    found = mixed(batch_size=5)
    assert found.weights == [3.0, 1.0]
    assert found.stop == "first_exhausted"
    common = {"slots": ["x"], "labels": (), "extras": (), "batch_size": 5}
    assert found.configs == [{**common, "table": "/a"}, {**common, "table": "/b"}]


def test_the_condition_of_an_entry_holds_besides_that_of_the_config() -> None:
    tables = [{"table": "/a", "where": "y > 1 or y < 0"}, {"table": "/b"}]
    found = mixed(tables=tables, where="z = 1")
    assert [each["where"] for each in found.configs] == ["(z = 1) and (y > 1 or y < 0)", "(z = 1)"]


def test_names_tell_the_number_and_no_secret() -> None:
    configs: list[dict[str, Any]] = [{"table": "s3://key:secret@bucket/t"}, {"table": object()}]
    first, second = table_names(configs)
    assert first.startswith("tables[0] (")
    assert "secret" not in first
    assert second == "tables[1]"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"tables": []}, "at least one table, found none"),
        ({"tables": {"table": "/a"}}, "tables: expected a list"),
        ({"tables": ["/a"]}, r"tables\[0\]: expected \{table: ..., weight: ...\}, found '/a'"),
        ({"tables": [{"tabel": "/a"}]}, r"tables\[0\]: unknown key 'tabel'.*did you mean"),
        ({"tables": [{"weight": 1}]}, r"tables\[0\]: expected a key 'table', found none"),
        *(
            ({"tables": [{"table": "/a", "weight": weight}]}, r"tables\[0\].weight: expected a nu")
            for weight in (0, -1, "3", True, float("nan"), float("inf"))
        ),
        ({"stop": "never"}, "stop: expected one of first_exhausted, all_exhausted, found 'never'"),
        ({"num_epochs": 2}, "num_epochs: with `tables` expected 1; iterate once for each epoch"),
        ({"follow": True}, "follow: with `tables` expected false"),
        ({"order": "replay"}, "order: with `tables` expected dynamic, static or rank"),
        ({"order": {"kind": "replay"}}, "order: with `tables`"),
        ({"progress": True}, "progress: with `tables` expected false"),
        ({"dispatch": {"in_step": False}}, "dispatch.in_step: with `tables` expected auto or true"),
        ({"dispatch": Dispatch(in_step=False)}, "dispatch.in_step: with `tables`"),
        ({"table": "/a"}, "expected a key 'table' or 'tables', found both"),
        ({"tables": None}, "expected a key 'table', or 'tables', found none"),
        ({"tables": None, "table": "/a", "stop": "all_exhausted"}, "stop: expected it beside"),
    ],
    ids=str,
)
def test_what_is_malformed_or_does_not_go_with_a_mixture_is_refused(
    keys: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        mixed(**keys)
