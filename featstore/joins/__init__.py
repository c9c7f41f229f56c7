"""Joins of raw logs before extraction: impressions with their labels and looked-up features."""
