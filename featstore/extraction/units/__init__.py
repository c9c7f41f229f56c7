"""One unit of raw rows: read, checked, extracted, and written as data files."""
