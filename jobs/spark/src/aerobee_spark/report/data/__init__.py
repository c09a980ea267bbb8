"""What a report knows: facts, figures, coverage, summary."""
