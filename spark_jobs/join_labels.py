"""Joins raw logs with labels on Spark: the job featstore.jobs.join_labels, from a clone."""

import sys

from featstore.jobs.join_labels import main

if __name__ == "__main__":
    sys.exit(main())
