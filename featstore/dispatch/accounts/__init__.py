"""Reports on an epoch, read from its store: which splits were read, by whom and in which order.

| module | holds |
|---|---|
| epochs.py | which epochs a store holds |
| ledger.py | the current leases of an epoch |
| receipt.py | how often each row was delivered |
| recording.py | the order in which rows were delivered, for a replay |
| status.py | the progress of running epochs |
| unfinished.py | rows of the last epoch that nobody delivered |
"""
