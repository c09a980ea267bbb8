"""The routing tables and the rules for registering and removing brokers."""
