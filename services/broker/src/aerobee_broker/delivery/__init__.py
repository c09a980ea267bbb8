"""Policy over topics: who gets which message, when, and how often. Knows no file and no wire."""
