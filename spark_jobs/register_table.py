"""Shows a table to engines that know Hive and Parquet: makes or updates its external table in a
Hive metastore.

    spark-submit spark_jobs/register_table.py --table /data/flights --name features.flights

Exit code 0: done, or nothing to do. 2: bad input, with one line that says what.
"""

import argparse
import sys
from collections.abc import Sequence

from featstore.errors import FeatstoreError
from featstore.extraction.hive.registration import register
from featstore.extraction.spark.runners import spark_session


def main(arguments: Sequence[str] | None = None) -> int:
    """Registers one table and prints what that changed; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="register_table", description=(__doc__ or "").partition("\n")[0]
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
        print(f"register_table: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
