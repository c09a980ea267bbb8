"""The message queues of a topic, and which of them gets a message. Shared by proxy and client."""
