"""Keep the topics, consumer groups and clients of this broker."""
