"""Extracts features on Spark: the job featstore.jobs.extract, from a clone."""

import sys

from featstore.jobs.extract import main

if __name__ == "__main__":
    sys.exit(main())
