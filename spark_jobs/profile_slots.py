"""Profiles slots on Spark: the job featstore.jobs.profile_slots, from a clone."""

from featstore.ending import end_with
from featstore.jobs.profile_slots import main

if __name__ == "__main__":
    end_with(main)
