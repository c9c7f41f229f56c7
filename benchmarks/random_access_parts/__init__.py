"""The sides of `random_access.py`: how each holds the same rows, and how workers are measured."""
