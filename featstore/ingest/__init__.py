"""What comes before and after an extraction: other formats imported, raw logs joined, Hive."""
