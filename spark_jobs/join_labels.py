"""Joins raw logs with labels on Spark: the job featstore.jobs.join_labels, from a clone."""

from featstore.ending import end_with
from featstore.jobs.join_labels import main

if __name__ == "__main__":
    end_with(main)
