"""Packs this Python with featstore into an archive for the executors of a Spark cluster."""
