"""What a report looks like: page, charts, tables, terminal."""
