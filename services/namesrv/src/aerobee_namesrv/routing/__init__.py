"""The routing tables and the rules by which brokers come and go."""
