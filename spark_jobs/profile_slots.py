"""Profiles slots on Spark: the job featstore.jobs.profile_slots, from a clone."""

import sys

from featstore.jobs.profile_slots import main

if __name__ == "__main__":
    sys.exit(main())
