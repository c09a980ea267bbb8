"""A port that takes TLS and plaintext: a relay process in front of the server's local socket."""
