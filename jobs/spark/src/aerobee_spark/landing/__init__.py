"""Landing facts: a streaming job that writes each message once into a facts table."""
