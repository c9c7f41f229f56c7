"""Joins raw logs with labels on Spark: the job featstore.tools.job_join_labels, from a clone."""

from featstore.base.processes import end_with
from featstore.tools.job_join_labels import main

if __name__ == "__main__":
    end_with(main)
