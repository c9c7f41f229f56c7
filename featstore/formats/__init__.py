"""Rows of other programs' files, read into Arrow: CSV, JSON lines, libsvm, pairs and TFRecord.

A reader streams one file in bounded memory, and tells which rows it could not read.
"""
