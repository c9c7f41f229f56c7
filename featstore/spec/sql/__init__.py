"""A spec as Spark SQL: `statement.py` prints the query, each other module one kind of operator."""
