"""A vacuum in a process whose clock is ahead, for tests.

Arguments: the URL of the table, and the hours. Prints the report.
"""

import sys
import time

import featstore.table.vacuum

if __name__ == "__main__":
    url, ahead_s, told = sys.argv[1], float(sys.argv[2]) * 3600, time.time
    time.time = lambda: told() + ahead_s
    print(featstore.table.vacuum.vacuum(url))  # noqa: T201
