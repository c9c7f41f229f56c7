"""Exploring a table: rows, samples, SQL views, profiles, plots, and the replay of raw rows."""
