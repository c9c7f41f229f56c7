"""Other programs' files to raw Parquet, the input of an extraction."""
