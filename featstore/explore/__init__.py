"""Looking at a table: per-slot statistics and their plots."""
