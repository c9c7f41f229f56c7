from pathlib import Path

import pytest

from featstore.base.errors import ConfigError
from featstore.loader.feature_loader import FeatureLoader
from featstore.loader.plan.shuffle import Shuffle
from featstore.loader.request.options import as_options
from featstore.loader.request.train_config import load_train_config

CONFIG = """
table: {table}
where: "dt >= '2026-11-03' and row < 250"
slots: [row, "ha*", {{name: tags, buckets: 3, max_len: 2}}]
labels: [click, {{name: ripe, null: drop}}]
batch_size: 32
seed: 1
shuffle: {{window_rows: 40, interleave: 2}}
staging: {{mode: whole, budget_bytes: 1GB}}
dispatch: {{store: auto, lease_s: 60}}
"""


def test_a_loader_is_made_from_a_training_config(table_url: str, tmp_path: Path) -> None:
    path = tmp_path / "train.yaml"
    path.write_text(CONFIG.format(table=table_url))
    with FeatureLoader.from_config(path, batch_size=10) as loader:
        batches = list(loader)
        rows = [row for batch in batches for row in batch["row"].tolist()]
        assert sorted(rows) == [row for row in range(70, 250) if row % 10]
        assert batches[0].num_rows == 10
        assert batches[0].slots == ("row", "half", "tags")
        assert int(batches[0]["tags"].lengths().max()) == 2
        assert loader.stats()["null_labels_dropped"] == 18
        assert loader.stats()["staging_num_staged"] == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "table: t\nslots: [a]\nbatchsize: 3",
            "unknown key 'batchsize'; did you mean 'batch_size'",
        ),
        ("slots: [a]", "expected a key 'table'"),
        ("table: t", "expected a key 'slots'"),
        ("- table", "expected keys such as table and slots, found list"),
        (
            "table: [",
            r"expected YAML, found: expected the node content, but found '<stream end>' \(line 1, "
            r"column 9\)$",
        ),
    ],
)
def test_what_is_no_training_config_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "train.yaml").write_text(text)
    with pytest.raises(ConfigError, match=rf"train\.yaml: .*{message}"):
        load_train_config(tmp_path / "train.yaml")


def test_a_config_that_is_not_there_is_told_of(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="found no such file"):
        load_train_config(tmp_path / "train.yaml")


def test_a_mapping_is_a_config_and_overrides_win() -> None:
    found = load_train_config({"table": "t", "slots": ["a"], "weight": None}, {"slots": ["b"]})
    assert found == {"table": "t", "slots": ["b"], "labels": (), "extras": ()}


def test_options_are_objects_or_their_keys() -> None:
    assert as_options(Shuffle, {"window_rows": 5}, "shuffle") == as_options(
        Shuffle, Shuffle(window_rows=5), "shuffle"
    )
    assert as_options(Shuffle, None, "shuffle") is None
    with pytest.raises(
        ConfigError, match="shuffle: unknown key 'window'; did you mean 'window_rows'"
    ):
        as_options(Shuffle, {"window": 5}, "shuffle")
    with pytest.raises(ConfigError, match="shuffle: expected keys of Shuffle, found 5"):
        as_options(Shuffle, 5, "shuffle")


def test_the_key_null_may_stand_bare_in_yaml(table_url: str, tmp_path: Path) -> None:
    (tmp_path / "train.yaml").write_text(
        f"table: {table_url}\nslots: [row]\nlabels: [{{name: ripe, null: -1}}]"
    )
    with FeatureLoader.from_config(tmp_path / "train.yaml") as loader:
        assert next(iter(loader)).labels["ripe"][:2].tolist() == [-1.0, 1.0]
