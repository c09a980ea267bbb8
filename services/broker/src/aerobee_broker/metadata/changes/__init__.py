"""The changes of tables: found by comparison, and appended to files."""
