"""Batches of several tables, drawn by weight: `tables` of a training config.

Each table is read by an ordinary loader. `turns.py` says whose batch is next, `iteration.py` draws
them, `state.py` unites the states, and `mixed_loader.py` has the methods of a loader.
"""
