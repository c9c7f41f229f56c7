"""Looking at a table: rows, samples, views for SQL, profiles, plots, and its rows extracted
again.
"""
