"""The message queues of a topic, and which of them takes a message: alike for proxy and client."""
