"""Keep the routing tables, and implement the rules for registering and removing brokers."""
