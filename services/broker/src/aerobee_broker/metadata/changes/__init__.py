"""Changes of tables: find them by comparison, and append them to files."""
