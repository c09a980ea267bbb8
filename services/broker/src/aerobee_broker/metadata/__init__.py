"""The broker's small tables and their JSON files under `config/`.

Independent of messages and of the wire format.
"""
