"""The demo: two raw logs with their specs and training configs, a model in plain torch, and a run
of the whole path from raw log to trained model.
"""
