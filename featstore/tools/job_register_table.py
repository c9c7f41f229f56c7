"""Creates or updates the external table of a Hive metastore that shows a featstore table.

Engines that read Hive tables and Parquet can then query it.

    spark-submit $(featstore spark-job register-table) --table /data/flights --name features.flights

Exit code 0: done, or nothing to do. Exit code 2: bad input, explained in one line.
"""

import argparse
import sys
from collections.abc import Sequence

from featstore.base.errors import FeatstoreError
from featstore.base.processes import end_with
from featstore.extraction.spark.runners import spark_session
from featstore.ingest.hive_registration import register
from featstore.tools.jobs import leave_folder


def main(arguments: Sequence[str] | None = None) -> int:
    """Registers one table and prints what that changed; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="register-table", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--table", required=True, metavar="URL", help="the table to show")
    parser.add_argument(
        "--name", required=True, metavar="DB.TABLE", help="its name in the metastore"
    )
    options = parser.parse_args(arguments)
    try:
        spark = spark_session("featstore register", hive=True)
        try:
            print(register(spark, options.table, options.name))
        finally:
            spark.stop()
    except (FeatstoreError, OSError) as error:
        print(f"register-table: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    leave_folder()
    end_with(main)
