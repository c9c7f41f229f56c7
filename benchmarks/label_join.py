"""The join of raw logs, with its checks and its report, against a plain Spark SQL join written by
hand.

Two joins of a made-up log with duplicates, late and orphaned events: by the impression's id, with
clicks and conversions, and by user and item, where a click belongs to the last impression before
it. The hand-written queries drop duplicates, keep the window and the cut-off, leave unripe labels
null, and write Parquet; they check and count nothing. Both sides begin with paths and end with
files, and run in one session in turn, after two runs of each to warm up, and must give the same
rows. The demanded figure: at most 1.2 times the time of the query, by the median, in CPU seconds of
the process tree and on the clock.

Then each join once more on each engine, `local` and `spark`, in a process of its own, as a nightly
job runs it: CPU seconds from start to end, and the largest peak of resident memory of a process
(Spark's is the JVM, with `spark.driver.memory` of 3 GB). Both must give the same report.

    python benchmarks/label_join.py [--small] [--rows N] [--repeats N] [--engines]
"""

import argparse
import datetime
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from featstore.extraction.spark.runners import spark_session
from featstore.ingest.join import join_labels
from featstore.ingest.join_local import join_labels_locally
from featstore.ingest.join_options import Impressions, Label, LabelJoin, LogSource
from shared_parts.machine import print_result
from shared_parts.process_tree import peak_bytes, spent_s, tree_cpu_s

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LIMIT = 1.2
SMALL_ROWS, ROWS, SMALL_REPEATS, REPEATS, NUM_WARM_UPS = 800_000, 2_000_000, 3, 5, 2
DAY_US = int(datetime.datetime(2026, 11, 1, tzinfo=datetime.UTC).timestamp()) * 1_000_000
HOUR_US = 3_600_000_000
CUT_OFF = datetime.datetime(2026, 11, 2, tzinfo=datetime.UTC)
SESSION = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "3g",
    "spark.sql.session.timeZone": "UTC",
}
BY_ID = """
with i as (
  select * from (select *, row_number() over (partition by impression_id order by ts, logged) as n from impressions) where n = 1
), c as (
  select impression_id, min(ts) as at from clicks where logged < timestamp'2026-11-02' group by impression_id
), v as (
  select impression_id, min(ts) as at from conversions where logged < timestamp'2026-11-02' group by impression_id
)
select i.* except (n),
  case when i.ts + interval 1 hour > timestamp'2026-11-02' then null when c.at is null then 0 else 1 end as click,
  case when i.ts + interval 6 hours > timestamp'2026-11-02' then null when v.at is null then 0 else 1 end as conversion
from i left join c on i.impression_id = c.impression_id and c.at >= i.ts and c.at < i.ts + interval 1 hour
  left join v on i.impression_id = v.impression_id and v.at >= i.ts and v.at < i.ts + interval 6 hours
"""
BY_USER = """
with i as (
  select * from (select *, row_number() over (partition by impression_id order by ts, logged) as n from impressions) where n = 1
), o as (
  select * except (n), lead(ts) over (partition by user_id, item_id order by ts, impression_id) as following from i
), m as (
  select o.impression_id, count(distinct c.ts) as clicks from o join clicks c
  on o.user_id = c.user_id and o.item_id = c.item_id and c.ts >= o.ts and c.ts < o.ts + interval 1 hour
    and (o.following is null or c.ts < o.following)
  where c.logged < timestamp'2026-11-02' group by o.impression_id
)
select i.* except (n),
  case when i.ts + interval 1 hour > timestamp'2026-11-02' then null else coalesce(cast(clicks as int), 0) end as click
from i left join m on i.impression_id = m.impression_id
"""


def main() -> int:
    """Prints the figures and one line `RESULT {json}`; 1 where a demanded figure is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--small", action="store_true", help=f"{SMALL_ROWS:,} impressions instead of {ROWS:,}"
    )
    parser.add_argument("--rows", type=int, default=None)
    parser.add_argument("--repeats", type=int, default=None)
    parser.add_argument("--engines", action="store_true", help="compare the engines only")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)  # engine, join, directory
    arguments = parser.parse_args()
    if arguments.one:
        run_one(*arguments.one)
        return 0
    if arguments.engines:
        with tempfile.TemporaryDirectory(prefix="featstore-join-") as place:
            write_logs(Path(place), arguments.rows or (SMALL_ROWS if arguments.small else ROWS))
            result = engines(Path(place))
        print_result(result)
        return 0 if result["ok"] else 1
    result = measure(arguments.small, num_rows=arguments.rows, num_repeats=arguments.repeats)
    print_result(result)
    return 0 if result["ok"] else 1


def measure(
    small: bool, *, num_rows: int | None = None, num_repeats: int | None = None
) -> dict[str, Any]:
    """The figures of both joins, `ratio` the worst of them; `ok` where each is within the limit and
    gives the rows of its query.
    """
    num_rows = num_rows or (SMALL_ROWS if small else ROWS)
    num_repeats = num_repeats or (SMALL_REPEATS if small else REPEATS)
    with tempfile.TemporaryDirectory(prefix="featstore-join-") as place:
        directory = Path(place)
        write_logs(directory, num_rows)
        spark = spark_session("featstore benchmark", _session(directory))
        try:
            queries = {"by_id": BY_ID, "by_user": BY_USER}
            figures = {
                name: compare(spark, name, make(directory), queries[name], num_repeats)
                for name, make in JOINS.items()
            }
        finally:
            spark.stop()
        sides = engines(directory)
    ok = all(figure["ok"] for figure in (*figures.values(), sides))
    ratio = max(
        figure[f"{unit}_ratio"] for figure in figures.values() for unit in ("cpu_s", "wall_s")
    )
    return {
        "ok": ok,
        "ratio": ratio,
        "limit": LIMIT,
        "num_rows": num_rows,
        "num_repeats": num_repeats,
        **figures,
        "engines": sides,
    }


def engines(directory: Path) -> dict[str, Any]:
    """CPU seconds, seconds and peak memory of each join on each engine; `ok` where the reports of
    both are the same.
    """
    result: dict[str, Any] = {"ok": True}
    for name in JOINS:
        reports = []
        for engine in ("local", "spark"):
            shutil.rmtree(directory / "ours", ignore_errors=True)
            started_s = time.perf_counter()
            command = [sys.executable, __file__, "--one", engine, name, str(directory)]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            found = json.loads(done.stdout.splitlines()[-1])
            reports.append(found.pop("report"))
            figures = {**found, "wall_s": round(time.perf_counter() - started_s, 1)}
            result |= {f"{name}_{engine}_{key}": value for key, value in figures.items()}
            print(f"{name} on {engine}: {figures}", flush=True)
        result["ok"] = result["ok"] and reports[0] == reports[1]
    return result


def run_one(engine: str, name: str, place: str) -> None:
    """One join, and what it cost, as JSON on the last line."""
    directory = Path(place)
    join = JOINS[name](directory)
    if engine == "local":
        report = join_labels_locally(join, memory_bytes=1_000_000_000)
    else:
        report = join_labels(join, spark_session("featstore benchmark", _session(directory)))
    document = dict(report.document)
    document["output"] = document["output"]["key_digest"]  # files differ
    cpu_s = sum(times.own_s + times.children_s for times in tree_cpu_s().values())
    figures = {"cpu_s": round(cpu_s, 1), "peak_mb": round(peak_bytes() / 1e6)}
    print(json.dumps({**figures, "report": document}))


def _session(directory: Path) -> dict[str, str]:
    return SESSION | {
        "spark.local.dir": str(directory / "spark"),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
    }


def by_id(directory: Path) -> LabelJoin:
    """Clicks and conversions by the id of the impression."""
    common: dict[str, Any] = {"key": ("impression_id",), "event_time": "ts", "log_time": "logged"}
    clicks, conversions = (LogSource(url=str(directory / log)) for log in ("clicks", "conversions"))
    labels = (
        Label(name="click", source=clicks, window_s=3_600, **common),
        Label(name="conversion", source=conversions, window_s=6 * 3_600, **common),
    )
    return _join(directory, labels)


def by_user(directory: Path) -> LabelJoin:
    """The clicks after the impression and before the user's next one of the item."""
    clicks = LogSource(url=str(directory / "clicks"))
    key = ("user_id", "item_id")
    return _join(
        directory,
        (
            Label(
                name="click",
                source=clicks,
                key=key,
                event_time="ts",
                log_time="logged",
                window_s=3_600,
                kind="count",
            ),
        ),
    )


JOINS: dict[str, Callable[[Path], LabelJoin]] = {"by_id": by_id, "by_user": by_user}


def _join(directory: Path, labels: tuple[Label, ...]) -> LabelJoin:
    source = LogSource(url=str(directory / "impressions"))
    impressions = Impressions(
        source=source, row_id=("impression_id",), event_time="ts", log_time="logged"
    )
    return LabelJoin(
        impressions=impressions, labels=labels, cut_off=CUT_OFF, output_url=str(directory / "ours")
    )


def compare(
    spark: "SparkSession", name: str, join: LabelJoin, query: str, num_repeats: int
) -> dict[str, Any]:
    """Both sides in turn; CPU seconds, seconds, and whether the rows are the same."""
    by_hand = Path(join.output_url).with_name("by_hand")

    def ours() -> None:
        shutil.rmtree(join.output_url, ignore_errors=True)
        join_labels(join, spark)

    def theirs() -> None:
        shutil.rmtree(by_hand, ignore_errors=True)
        for log in ("impressions", "clicks", "conversions"):
            spark.read.parquet(f"file://{by_hand.with_name(log)}").createOrReplaceTempView(log)
        spark.sql(query).write.option("compression", "snappy").parquet(f"file://{by_hand}")

    sides: dict[str, Callable[[], None]] = {"ours": ours, "by_hand": theirs}
    seen: dict[str, list[tuple[float, float]]] = {side: [] for side in sides}
    for repeat in range(-NUM_WARM_UPS, num_repeats):
        for side, run in sides.items():
            measured = _measured(run)
            if repeat >= 0:
                seen[side].append(measured)
    figure: dict[str, Any] = {"same_rows": _same_rows(spark, join.output_url, str(by_hand))}
    for number, unit in enumerate(("cpu_s", "wall_s")):
        medians = {side: statistics.median(runs[number] for runs in seen[side]) for side in sides}
        figure |= {f"{side}_{unit}": round(median, 2) for side, median in medians.items()}
        ratios = [
            mine[number] / other[number]
            for mine, other in zip(seen["ours"], seen["by_hand"], strict=True)
        ]
        figure |= {
            f"{unit}_ratio": round(medians["ours"] / medians["by_hand"], 3),
            f"{unit}_ratios": [round(r, 3) for r in ratios],
        }
    figure["ok"] = (
        figure["same_rows"] and figure["cpu_s_ratio"] <= LIMIT and figure["wall_s_ratio"] <= LIMIT
    )
    print(f"{name}: {figure}", flush=True)
    return figure


def _same_rows(spark: "SparkSession", left: str, right: str) -> bool:
    ours, theirs = (spark.read.parquet(f"file://{url}") for url in (left, right))
    same = ours.columns == theirs.columns and ours.count() == theirs.count()
    return same and not ours.exceptAll(theirs).take(1)


def _measured(run: Callable[[], None]) -> tuple[float, float]:
    """CPU seconds of this process and its children, the JVM among them, and seconds on the
    clock.
    """
    before, start_s = tree_cpu_s(), time.perf_counter()
    run()
    return spent_s(before, tree_cpu_s()), time.perf_counter() - start_s


def write_logs(directory: Path, num_rows: int) -> None:
    """A day of impressions, one in fifty twice; a click for every twentieth and a conversion for
    every hundredth, a tenth of these twice; of ten events one has an id that no impression has.
    """
    rng = np.random.default_rng(1)
    ts = np.sort(rng.integers(DAY_US, DAY_US + 24 * HOUR_US, num_rows))
    rows = {
        "impression_id": np.array(
            [f"{n * 2654435761 % 2**32:08x}-{n:08x}" for n in range(num_rows)]
        ),
        "user_id": rng.integers(0, max(1, num_rows // 20), num_rows),
        "item_id": rng.zipf(1.3, num_rows) % 10_000,
        "ts": ts,
        "logged": ts + rng.integers(0, 60_000_000, num_rows),
    }
    rows |= {f"number_{n}": rng.random(num_rows) for n in range(4)}
    rows |= {f"code_{n}": rng.integers(0, 1_000, num_rows) for n in range(4)}
    _write(
        directory / "impressions",
        rows,
        np.concatenate([np.arange(num_rows), rng.integers(0, num_rows, num_rows // 50)]),
    )
    for log, share, hours in (("clicks", 20, 2), ("conversions", 100, 9)):
        _write_events(directory / log, rng, rows, num_rows // share, hours)


def _write_events(
    directory: Path, rng: np.random.Generator, rows: dict[str, Any], num_events: int, hours: int
) -> None:
    chosen = rng.integers(0, len(rows["ts"]), num_events)
    at = rows["ts"][chosen] + rng.integers(0, hours * HOUR_US, num_events)
    ids = np.where(
        rng.random(num_events) < 0.1,
        np.char.add(rows["impression_id"][chosen], "-"),
        rows["impression_id"][chosen],
    )
    events = {
        "impression_id": ids,
        "user_id": rows["user_id"][chosen],
        "item_id": rows["item_id"][chosen],
        "ts": at,
        "logged": at + rng.integers(0, HOUR_US, num_events),
    }
    _write(
        directory,
        events,
        np.concatenate([np.arange(num_events), rng.integers(0, num_events, num_events // 10)]),
    )


def _write(directory: Path, rows: dict[str, Any], order: Any) -> None:
    directory.mkdir()
    table = pa.table(rows)
    for name in ("ts", "logged"):
        table = table.set_column(
            table.column_names.index(name), name, table[name].cast(pa.timestamp("us", tz="UTC"))
        )
    parts = np.array_split(order, 4)
    for number, part in enumerate(parts):
        pq.write_table(table.take(pa.array(part)), directory / f"part-{number}.parquet")


if __name__ == "__main__":
    sys.exit(main())
