"""The broker's tables of topics, consumer groups and offsets, with JSON files under `config/`.

The tables do not depend on messages or on the wire format.
"""
