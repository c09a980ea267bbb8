"""Subscribe a client to lite topics, and receive their messages."""
