"""Statistics of existing rows, gathered by Spark tasks and merged on the executors or driver."""

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from featstore.base.schema import SlotSchema
from featstore.extraction.spark.runners import check_workers, run_checked
from featstore.extraction.spark.spark_errors import telling_errno
from featstore.extraction.units.unit_statistics import gather_rows
from featstore.statistics.column_statistics import Statistics, merge_statistics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Item = TypeVar("Item")


def gather_items(
    spark: "SparkSession",
    schema: SlotSchema,
    items: Sequence[Item],
    read: Callable[[Item], Iterable[pa.RecordBatch]],
) -> Statistics:
    """Gathers statistics of the rows of all items, one Spark task per item.

    Args:
        schema: The slots and labels to gather.
        items: What to read; sent to the workers, as is `read`.
        read: Returns an item's batches, with columns by the names in `schema` and missing as null.
    """
    if not items:
        return Statistics()
    check_workers(spark.sparkContext)

    def gather(item: Item) -> Statistics:
        with telling_errno():
            return gather_rows(schema, read(item))

    parts = spark.sparkContext.parallelize(items, len(items)).map(gather)
    found: Statistics = run_checked(
        spark.sparkContext,
        lambda: parts.treeReduce(lambda one, other: merge_statistics([one, other])),
    )
    return found


def gather_dataframe(dataframe: "DataFrame", schema: SlotSchema) -> Statistics:
    """Gathers statistics of a DataFrame's rows, which are read once.

    Its columns are the slots and labels of `schema`, by name.
    """
    context = dataframe.sparkSession.sparkContext
    check_workers(context)
    chosen = dataframe.select(*(f"`{name}`" for name in schema.column_names))
    rows = run_checked(
        context, chosen.mapInArrow(partial(_gather_partition, schema), "found binary").collect
    )
    # Unpickling is safe here: the bytes come from our own tasks.
    return merge_statistics(pickle.loads(row["found"]) for row in rows)


def _gather_partition(
    schema: SlotSchema, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Runs on a worker: gathers one partition of the DataFrame."""
    yield pa.RecordBatch.from_pydict({"found": [pickle.dumps(gather_rows(schema, batches))]})
