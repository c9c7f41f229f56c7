"""The sides of benchmarks/extraction.py, and what they have in common."""
