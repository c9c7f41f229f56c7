"""The log of `histories.py`, and its rows with the lists that they see."""
