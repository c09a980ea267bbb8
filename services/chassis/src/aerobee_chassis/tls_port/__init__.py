"""Serve TLS and plaintext on one port: certificates, and the PROXY protocol."""
