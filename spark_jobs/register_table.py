"""Shows a table in a Hive metastore: the job featstore.tools.job_register_table, from a clone."""

from featstore.base.processes import end_with
from featstore.tools.job_register_table import main

if __name__ == "__main__":
    end_with(main)
