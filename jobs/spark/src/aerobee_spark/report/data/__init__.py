"""Compute the data of a report: its plan, figures, coverage, forecast and summary."""
