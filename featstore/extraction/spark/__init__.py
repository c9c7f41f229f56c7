"""Extraction on Spark: sessions, runners, errors, and statistics of rows that are there.

pyspark is imported here, in `extraction/hive/` and in `joins/` only.
"""
