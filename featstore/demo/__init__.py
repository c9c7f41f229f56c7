"""The demo: two raw logs, their specs and training configs, a model in plain torch, and the whole
path run end to end.
"""
