"""duckdb: a query's result in record batches. To shuffle, it is sorted by random numbers."""

from collections.abc import Iterator
from typing import Any

import duckdb

from compare_parts.job import Job
from compare_parts.peers.arrow_tensors import to_tensors


class Reader:
    def __init__(self, job: Job) -> None:
        self._job = job

    def __iter__(self) -> Iterator[dict[str, Any]]:
        job = self._job
        order = "order by random()" if job.shuffle else ""
        with duckdb.connect(config={"threads": job.num_cores}) as connection:
            rows = connection.sql(
                f"select {', '.join(job.columns)} from read_parquet({job.own_files}) {order}"
            )
            for batch in rows.to_arrow_reader(job.batch_size):
                yield to_tensors(batch)
