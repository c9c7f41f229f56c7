"""Hive metastores: `locations.py` makes directories for Hive, `registration.py` registers them."""
