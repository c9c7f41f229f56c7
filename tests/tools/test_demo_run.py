"""The demo end to end, on little data."""

from functools import partial
from importlib import resources
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

import featstore
from featstore.base.errors import ConfigError, SpecError
from featstore.spec.lint import lint
from featstore.tools import demo_flights as flights
from featstore.tools.demo_run import (
    Recipe,
    baseline_auc,
    mean_labels,
    run,
    run_demo,
    run_synthetic,
)
from featstore.tools.demo_train import auc
from tests.programs import run_python


@pytest.fixture(scope="module")
def few_flights() -> Recipe:
    return Recipe(
        name="flights",
        write=partial(flights.write_flights, data=flights.load_flights().of_planes(60)),
        partition_key="month",
        num_evaluated=2,
        baseline="carrier",
        label="late",
    )


def test_the_flights_run_from_raw_log_to_final_report(
    few_flights: Recipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = run(few_flights, tmp_path / "demo", engine="local")
    said = capsys.readouterr().out
    table = featstore.open_table(str(tmp_path / "demo" / "table"))
    assert table.num_rows == report.raw.num_rows == report.extracted.num_rows
    assert report.trained.num_rows + report.evaluated.num_rows == table.num_rows
    assert len(table.partitions) == 12
    assert (
        f"{report.raw.num_dropped:,} cancelled or diverted flights have no label and were dropped"
        in said
    )
    for part in (
        "raw log",
        "extraction",
        "training",
        "evaluation",
        "waiting for data",
        "per carrier",
    ):
        assert part in str(report)
    assert str(report) in said
    assert "featstore extract --spec" in said


@pytest.mark.parametrize("name", ["flights", "synthetic"])
def test_the_specs_of_the_demo_match_their_locks(name: str) -> None:
    report = lint(str(resources.files("featstore.tools") / f"{name}.spec.yaml"))
    assert (report.findings, report.notes) == ((), ())


def test_a_changed_spec_and_config_are_kept_by_the_next_run(
    few_flights: Recipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(few_flights, tmp_path, engine="local")
    assert str(lint(str(tmp_path / "flights.spec.yaml"))).endswith("nothing found")
    spec, config = tmp_path / "flights.spec.yaml", tmp_path / "flights.train.yaml"
    spec.write_text(
        spec.read_text() + "  - {slot: 505, name: model_x_hour, op: cross, of: [model, hour]}\n"
    )
    config.write_text(
        config.read_text().replace("  - day_of_week\n", "  - day_of_week\n  - model_x_hour\n")
    )
    run(few_flights, tmp_path, engine="local")
    table = featstore.open_table(str(tmp_path / "table"))
    assert f"keeping {spec} as it is" in capsys.readouterr().out
    assert table.slots[-1].name == "model_x_hour"
    assert table.version == 1


def test_a_broken_spec_stops_the_run_and_leaves_the_table(
    few_flights: Recipe, tmp_path: Path
) -> None:
    run(few_flights, tmp_path, engine="local")
    spec = tmp_path / "flights.spec.yaml"
    spec.write_text(spec.read_text().replace("op: log1p", "op: log2p", 1))
    with pytest.raises(SpecError, match=r"slots\[7\].*log2p"):
        run(few_flights, tmp_path, engine="local")
    assert featstore.open_table(str(tmp_path / "table")).version == 0


def test_the_baseline_predicts_each_rows_mean_from_the_other_months(
    few_flights: Recipe, tmp_path: Path
) -> None:
    few_flights.write(tmp_path)
    rows = (
        ds.dataset(tmp_path, partitioning="hive")
        .to_table(columns=["carrier", "late", "month"])
        .to_pylist()
    )
    seen = [row for row in rows if row["month"] < "2013-11"]
    scored = [row for row in rows if row["month"] >= "2013-11"]
    late = {
        carrier: [row["late"] for row in seen if row["carrier"] == carrier]
        for carrier in {r["carrier"] for r in seen}
    }
    means = {carrier: sum(labels) / len(labels) for carrier, labels in late.items()}
    overall = sum(row["late"] for row in seen) / len(seen)
    scores = [means.get(row["carrier"], overall) for row in scored]
    assert baseline_auc(few_flights, tmp_path) == pytest.approx(
        auc([row["late"] for row in scored], scores)
    )


def test_mean_labels_of_known_and_new_values() -> None:
    training = pa.table({"shop": ["b", "a", "b", "c"], "label": [1, 0, 0, 1]})
    scored = pa.table({"shop": ["a", "b", "z", "c"]})
    assert mean_labels(training, scored, "shop", "label").to_pylist() == [0.0, 0.5, 0.5, 1.0]


def test_a_synthetic_log_of_another_size_replaces_the_one_before(tmp_path: Path) -> None:
    for num_rows in (9_000, 4_000):
        report = run_synthetic(tmp_path, num_rows, engine="local")
        assert report.trained.num_rows + report.evaluated.num_rows == num_rows
    assert featstore.open_table(str(tmp_path / "synthetic" / "table")).num_rows == 4_000


@pytest.mark.slow
def test_the_demo_extracts_on_spark(tmp_path: Path) -> None:
    """In a process of its own, since the demo stops its Spark session."""
    program = (
        "import sys; from featstore.tools.demo_run import run_synthetic; run_synthetic(sys.argv[1], "
        "2_000)"
    )
    assert "start of Spark" in run_python(program, tmp_path).stdout
    assert featstore.open_table(str(tmp_path / "synthetic" / "table")).num_rows == 2_000


def test_an_unknown_engine_answers_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="engine: expected spark or local, found 'sprak'"):
        run_demo(tmp_path, engine="sprak")


def test_fewer_rows_than_days_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected at least 7 rows, one for each day, found 6"):
        run_synthetic(tmp_path, 6, engine="local")
