"""Running a graph: over record batches, over files, and on Spark."""
