"""The report of a run: one HTML file with curves, tables and trajectories."""

DEFAULT_PAGES = 40
"""Trajectories that get a page of their own unless a number is asked for."""
