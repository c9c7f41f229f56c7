"""Plots of results: pure functions from their Arrow tables to matplotlib Figures. Results have them
as methods `plot_...`.
"""
