"""The log of a Delta table: its files, its local copy, its add actions, and what it demands."""
