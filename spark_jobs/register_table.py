"""Shows a table in a Hive metastore: the job featstore.jobs.register_table, from a clone."""

import sys

from featstore.jobs.register_table import main

if __name__ == "__main__":
    sys.exit(main())
