"""The account of an epoch, read from its store: which splits were read, by whom, in which order.

| module | holds |
|---|---|
| epochs.py | which epochs a store holds |
| ledger.py | the leases of an epoch as they are now |
| receipt.py, recording.py, status.py | how often and in which order rows were read; what goes on |
| unfinished.py | rows of the last epoch that nobody delivered |
"""
