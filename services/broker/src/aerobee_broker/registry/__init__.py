"""The topics, consumer groups and clients of this broker."""
