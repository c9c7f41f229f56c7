"""What `compare.py` runs: a program of each peer, as a user would write it, and what measures it."""
