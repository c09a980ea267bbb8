"""Serve TLS and plaintext on one port, with a relay process in front of the server's socket."""
