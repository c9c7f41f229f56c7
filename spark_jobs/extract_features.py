"""Extracts features on Spark: the job featstore.jobs.extract, from a clone."""

from featstore.ending import end_with
from featstore.jobs.extract import main

if __name__ == "__main__":
    end_with(main)
