"""Runs the demo end to end: a raw log, its extraction into a table, and a model trained and
evaluated on the table.
"""

import json
import shlex
import shutil
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from importlib.resources import files as package_files
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from tabulate import tabulate

from featstore import api
from featstore.base.errors import ConfigError
from featstore.extraction.job import ExtractReport
from featstore.extraction.progress_bar import ProgressBar
from featstore.extraction.spark.runners import spark_session
from featstore.loader.feature_loader import FeatureLoader
from featstore.spec.parse import load_spec
from featstore.tools import demo_flights as flights
from featstore.tools import demo_synthetic as synthetic
from featstore.tools.demo_raw_log import RawLog
from featstore.tools.demo_train import EvaluateReport, TrainReport, auc, evaluate, train

ENGINES = ("spark", "local")
_TABLE_LINE = "table: demo/table\n"
# In a run of seconds, Java's optimizing compiler costs more than it gains.
_SPARK_CONF = {
    "spark.ui.enabled": "false",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
}


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What differs between the demo's inputs.

    Attributes:
        name: The name of its spec and config files.
        write: Writes the raw log to a directory.
        partition_key: The partition key of raw log and table.
        num_evaluated: The number of last partitions used for evaluation.
        baseline: The raw column of the baseline, which predicts the mean label for each value.
        label: The raw column of the label.
    """

    name: str
    write: Callable[[Path], RawLog]
    partition_key: str
    num_evaluated: int
    baseline: str
    label: str


@dataclass(frozen=True, kw_only=True)
class DemoReport:
    """The results of a run. All `seconds` are wall time.

    Attributes:
        raw: The raw log.
        raw_seconds: The time to write it.
        spark_seconds: The time to start Spark; None without Spark.
        extracted: The extraction.
        trained: The training.
        evaluated: The evaluation.
        baseline: The column of the baseline.
        baseline_auc: The AUC of the baseline.
        seconds: The time of the whole run.
    """

    raw: RawLog
    raw_seconds: float
    spark_seconds: float | None
    extracted: ExtractReport
    trained: TrainReport
    evaluated: EvaluateReport
    baseline: str
    baseline_auc: float
    seconds: float

    def __str__(self) -> str:
        rows = [
            ("raw log", self.raw.num_rows, self.raw.size_bytes, self.raw_seconds, ""),
            ("start of Spark", None, None, self.spark_seconds, ""),
            (
                "extraction",
                self.extracted.num_rows,
                self.extracted.size_bytes,
                self.extracted.seconds,
                f"{self.extracted.num_rows / self.extracted.seconds:,.0f} rows/s",
            ),
            (
                "training",
                self.trained.num_rows,
                None,
                self.trained.seconds,
                f"{self.trained.rows_per_s:,.0f} rows/s, {self.trained.wait_share:.1%} of the time "
                f"waiting for data",
            ),
            (
                "evaluation",
                self.evaluated.num_rows,
                None,
                self.evaluated.seconds,
                f"AUC {self.evaluated.auc:.4f}; of the mean label per {self.baseline} "
                f"{self.baseline_auc:.4f}",
            ),
            ("all", None, None, self.seconds, ""),
        ]
        return tabulate(
            [
                (part, num_rows, size_bytes and size_bytes / 1e6, seconds, remark)
                for part, num_rows, size_bytes, seconds, remark in rows
                if seconds is not None
            ],
            ("part", "rows", "MB", "seconds", ""),
            "simple",
            intfmt=",",
            floatfmt=".1f",
            colalign=("left", "right", "right", "right", "left"),
        )


def run_demo(directory: str | Path = "demo", *, engine: str = "spark") -> DemoReport:
    """Runs the demo on the flights of 2013 out of New York: a model is trained on ten months and
    evaluated on the last two. Prints its progress.

    Args:
        directory: Where raw log, table, spec and config are kept.
        engine: `spark` or `local`.

    Raises:
        ConfigError: The engine is unknown.
        MissingDependencyError: The package with the flights is not installed.
    """
    recipe = Recipe(
        name="flights",
        write=flights.write_flights,
        partition_key=flights.PARTITION_KEY,
        num_evaluated=2,
        baseline="carrier",
        label="late",
    )
    return run(recipe, Path(directory), engine=engine)


def run_synthetic(
    directory: str | Path, num_rows: int, *, engine: str = "spark", seed: int = 0
) -> DemoReport:
    """Runs the demo on a synthetic click log: a model is trained on all days but the last, and
    evaluated on that. Prints its progress.

    Args:
        directory: Raw log, table, spec and config are kept in its subdirectory `synthetic`.
        num_rows: The number of rows of the log.
        engine: `spark` or `local`.
        seed: The seed of the log.

    Raises:
        ConfigError: The engine is unknown, or there are fewer rows than days.
    """
    if num_rows < synthetic.NUM_DAYS:
        raise ConfigError(
            f"expected at least {synthetic.NUM_DAYS} rows, one for each day, found {num_rows}"
        )
    recipe = Recipe(
        name="synthetic",
        write=partial(synthetic.write_click_log, num_rows=num_rows, seed=seed),
        partition_key=synthetic.PARTITION_KEY,
        num_evaluated=1,
        baseline="category",
        label="clicked",
    )
    return run(recipe, Path(directory) / recipe.name, engine=engine)


def run(recipe: Recipe, directory: Path, *, engine: str) -> DemoReport:
    """Runs a recipe. `directory` gets `raw/`, `table/`, a spec and a training config; the last two
    are kept if they exist.
    """
    if engine not in ENGINES:
        raise ConfigError(f"engine: expected {' or '.join(ENGINES)}, found {engine!r}")
    began = time.monotonic()
    raw = _raw_log(recipe, directory / "raw")
    raw_seconds = time.monotonic() - began
    spec_path = _own_spec(recipe, directory)
    config_path = _own_copy(f"{recipe.name}.train.yaml", directory)
    extracted, spark_seconds = _extract(recipe, directory, spec_path, engine)
    where = _evaluation_rows(recipe, directory / "raw")
    print(f"training a DeepFM with {config_path}")
    with FeatureLoader.from_config(config_path) as loader:
        model, trained = train(loader)
    with FeatureLoader.from_config(config_path, where=where, shuffle=None) as loader:
        evaluated = evaluate(model, loader)
    report = DemoReport(
        raw=raw,
        raw_seconds=raw_seconds,
        spark_seconds=spark_seconds,
        extracted=extracted,
        trained=trained,
        evaluated=evaluated,
        baseline=recipe.baseline,
        baseline_auc=baseline_auc(recipe, directory / "raw"),
        seconds=time.monotonic() - began,
    )
    print(f"\n{report}\n\n{_what_next(recipe, directory, spec_path, config_path, where)}")
    return report


def _raw_log(recipe: Recipe, directory: Path) -> RawLog:
    print(f"writing the raw log to {directory}/", flush=True)
    # Partitions of an earlier run with other options would be extracted too.
    for earlier in directory.glob(f"{recipe.partition_key}=*"):
        shutil.rmtree(earlier)
    raw = recipe.write(directory)
    dropped = (
        f"; {raw.num_dropped:,} cancelled or diverted flights have no label and were dropped"
        if raw.num_dropped
        else ""
    )
    print(f"  {raw.num_rows:,} rows in {raw.num_files} files{dropped}")
    return raw


def _own_spec(recipe: Recipe, directory: Path) -> Path:
    """Copies the spec for the user on the first run, with its lock file, which must not be put
    beside a spec that the user has changed.
    """
    if not (directory / f"{recipe.name}.spec.yaml").exists():
        _own_copy(f"{recipe.name}.spec.lock.json", directory)
    return _own_copy(f"{recipe.name}.spec.yaml", directory)


def _own_copy(name: str, directory: Path) -> Path:
    """Copies a file of the demo for the user on the first run. A training config gets the path of
    the table in the same directory.
    """
    path = directory / name
    if path.exists():
        print(f"keeping {path} as it is")
    else:
        text = package_files("featstore.tools").joinpath(name).read_text()
        path.write_text(
            text.replace(_TABLE_LINE, f"table: {json.dumps(str(directory / 'table'))}\n")
        )
    return path


def _extract(
    recipe: Recipe, directory: Path, spec_path: Path, engine: str
) -> tuple[ExtractReport, float | None]:
    spec = load_spec(spec_path)
    began = time.monotonic()
    with _session(engine) as session:
        spark_seconds = time.monotonic() - began if session is not None else None
        print(f"extracting {directory / 'raw'} with {spec_path}", flush=True)
        input_url, table_url = str(directory / "raw"), str(directory / "table")
        keys = (recipe.partition_key,)
        with ProgressBar() as bar:
            report = api.extract(
                spec, input_url, table_url, partition_from_path=keys, spark=session, progress=bar
            )
    outcome = (
        f"committed as version {report.version}"
        if report.committed
        else f"nothing new: version {report.version} holds it"
    )
    print(f"  {report.num_rows:,} rows in {report.num_files} files, {outcome}")
    return report, spark_seconds


def _session(engine: str) -> Any:
    """A Spark session, which ends with the block; None without Spark."""
    if engine == "local":
        return nullcontext()
    print("starting Spark", flush=True)
    return spark_session("featstore demo", _SPARK_CONF)


def _partitions(raw: Path) -> list[Path]:
    return sorted(path for path in raw.iterdir() if "=" in path.name)


def _evaluation_rows(recipe: Recipe, raw: Path) -> str:
    first = _partitions(raw)[-recipe.num_evaluated].name.partition("=")[2]
    return f"{recipe.partition_key} >= '{first}'"


def baseline_auc(recipe: Recipe, raw: Path) -> float:
    """The AUC of the baseline on the rows for evaluation. It predicts the mean label that the other
    rows have for the same value of the baseline column.
    """
    partitions = _partitions(raw)
    training, scored = (
        _read(recipe, part)
        for part in (partitions[: -recipe.num_evaluated], partitions[-recipe.num_evaluated :])
    )
    means = mean_labels(training, scored, recipe.baseline, recipe.label)
    return auc(scored[recipe.label].to_numpy(), means.to_numpy())


def mean_labels(training: pa.Table, scored: pa.Table, baseline: str, label: str) -> pa.ChunkedArray:
    """The mean label that the training rows have for each scored row's value of the baseline; that
    of all training rows for a value that they lack.
    """
    means = training.group_by(baseline).aggregate([(label, "mean")])
    places = pc.index_in(scored[baseline], means[baseline])
    known = pc.take(means[f"{label}_mean"], places)
    return pc.fill_null(known, pc.mean(training[label]))


def _read(recipe: Recipe, partitions: list[Path]) -> pa.Table:
    paths = (path for partition in partitions for path in sorted(partition.glob("*.parquet")))
    return pa.concat_tables(
        pq.ParquetFile(path).read([recipe.baseline, recipe.label]) for path in paths
    )


def _what_next(
    recipe: Recipe, directory: Path, spec_path: Path, config_path: Path, where: str
) -> str:
    spec, config = shlex.quote(str(spec_path)), shlex.quote(str(config_path))
    raw, table = (shlex.quote(str(directory / name)) for name in ("raw", "table"))
    extract = f"featstore extract --spec {spec} --input {raw} --table {table}"
    return f"""Now change the features: add a slot to {spec_path},
select it in {config_path}, and run

  {extract} --partition-from-path {recipe.partition_key}
  python -m featstore.tools.demo_train {config} --evaluate "{where}"

To inspect the table:  featstore table inspect {table}"""
