"""Texts of values: found in the raw rows of a unit, kept beside its data files."""
