"""Leases: a worker's time-limited right to a split, and what workers know of each other's leases.

| module | holds |
|---|---|
| lease.py | the record of a lease, and its transitions as pure functions |
| held.py, renewer.py | the leases that one worker holds, and the thread that renews them |
| survey.py, hints.py | what one worker knows of the leases of others |
| stealing.py | what a worker takes that is not simply the next split |
| delivered.py | what was delivered of a split, as ranges of rows |
| clock.py | the clock by which leases expire |
"""
