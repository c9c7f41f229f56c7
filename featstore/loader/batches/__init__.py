"""Decoded rows to batches: put in order, gathered, cut to size, transformed, in threads of their
own.
"""
