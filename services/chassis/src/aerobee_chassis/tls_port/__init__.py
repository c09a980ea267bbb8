"""A port for TLS and plaintext: a relay process in front of the server's local socket."""
