"""Exploring a table: rows, samples, SQL views, profiles, plots, reports, replays of raw rows."""
