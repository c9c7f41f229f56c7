"""Extraction on Spark: sessions, runners, errors, and statistics of existing rows.

pyspark is imported only here, in `ingest/` and in `tools/`.
"""
