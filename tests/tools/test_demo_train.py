"""Training on the batches of a real loader."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

import featstore
from featstore import api
from featstore.base.errors import ConfigError
from featstore.base.schema import SlotKind
from featstore.loader.feature_loader import FeatureLoader
from featstore.tools import demo_train as train_module
from featstore.tools.demo_synthetic import write_click_log
from featstore.tools.demo_train import evaluate, slots_of, train

SPEC = Path(train_module.__file__).with_name("synthetic.spec.yaml")
SLOTS = ["item_category", "user_x_category", "seen_items", "category_x_seen", "price_log"]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("clicks")
    write_click_log(directory / "raw", 30_000)
    api.extract(SPEC, str(directory / "raw"), str(directory / "table"), partition_from_path=["dt"])
    return str(directory / "table")


@pytest.fixture
def config(url: str, tmp_path: Path) -> Path:
    path = tmp_path / "train.yaml"
    path.write_text(
        yaml.safe_dump(
            {"table": url, "slots": SLOTS, "labels": ["click"], "where": "dt < '2026-11-07'"}
        )
    )
    return path


@pytest.mark.slow
def test_every_row_is_trained_on_once_and_the_model_beats_chance_on_the_last_day(url: str) -> None:
    options: dict[str, Any] = {"slots": SLOTS, "labels": ["click"], "batch_size": 256}
    with FeatureLoader(url, where="dt < '2026-11-07'", **options) as loader:
        model, trained = train(loader)
    with FeatureLoader(url, where="dt = '2026-11-07'", **options) as loader:
        evaluated = evaluate(model, loader)
    assert (trained.num_rows, evaluated.num_rows) == (25_715, 4_285)
    assert 0.0 < trained.wait_share < 1.0
    assert trained.rows_per_s == pytest.approx(trained.num_rows / trained.seconds)
    assert evaluated.auc > 0.58


def test_slots_of_a_batch_have_the_kinds_and_shapes_of_the_table(url: str) -> None:
    table = featstore.open_table(url)
    with FeatureLoader(url, slots=["*"], labels=["click"]) as loader:
        found = slots_of(next(iter(loader)))
    assert [(slot.name, slot.kind, slot.shape) for slot in found] == [
        (s.name, s.kind, s.shape) for s in table.slots
    ]
    assert {slot.kind for slot in found} == set(SlotKind)


def test_no_row_to_train_on_is_an_error(url: str) -> None:
    loader = FeatureLoader(url, slots=SLOTS, labels=["click"], where="click = 2")
    with loader, pytest.raises(ConfigError, match="expected rows to train on, found none"):
        train(loader)


def test_no_label_to_train_on_is_an_error(url: str) -> None:
    loader = FeatureLoader(url, slots=["item"])
    with (
        loader,
        pytest.raises(
            ConfigError,
            match=r"expected slots and a label to train on, found slots \['item'\], labels \[\]",
        ),
    ):
        train(loader)


def test_the_command_trains_and_evaluates(config: Path) -> None:
    result = CliRunner().invoke(
        train_module.main, [str(config), "--evaluate", "dt >= '2026-11-07'"]
    )
    assert result.exit_code == 0, result.output
    assert "trained on 25,715 rows" in result.output
    assert "on 4,285 rows where dt >= '2026-11-07'" in result.output


def test_bad_input_ends_the_command_with_one_line_and_code_2(config: Path) -> None:
    config.write_text(config.read_text().replace("price_log", "price_lag"))
    result = CliRunner().invoke(train_module.main, [str(config)])
    assert result.exit_code == 2
    assert "did you mean 'price_log'" in result.output
    assert len(result.output.splitlines()) == 1


def test_an_invalid_where_for_evaluation_is_reported_before_the_training(config: Path) -> None:
    result = CliRunner().invoke(
        train_module.main, [str(config), "--evaluate", "dtt >= '2026-11-07'"]
    )
    assert result.exit_code == 2
    assert "no column 'dtt'; did you mean 'dt'" in result.output
    assert "trained on" not in result.output
