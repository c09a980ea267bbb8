"""The broker's small tables and their JSON files under `config/`. Knows no message and no wire."""
