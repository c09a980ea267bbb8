"""Compute the data of a report: facts, figures, coverage and summary."""
