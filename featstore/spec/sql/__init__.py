"""A spec as Spark SQL: `statement.py` prints the query, the other modules one kind of operator
each.
"""
