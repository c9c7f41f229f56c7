"""Shows a table in a Hive metastore: the job featstore.jobs.register_table, from a clone."""

from featstore.ending import end_with
from featstore.jobs.register_table import main

if __name__ == "__main__":
    end_with(main)
