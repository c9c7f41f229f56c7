"""Extracts features on Spark: the job featstore.tools.job_extract, from a clone."""

from featstore.base.processes import end_with
from featstore.tools.job_extract import main

if __name__ == "__main__":
    end_with(main)
