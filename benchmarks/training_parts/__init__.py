"""Parts of benchmarks/training.py."""
