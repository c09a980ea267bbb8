"""The name server: which broker serves which topic. It tells clients, and carries no message."""
