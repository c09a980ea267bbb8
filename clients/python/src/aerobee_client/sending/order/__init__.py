"""Send messages that keep an order: messages of a message group, and messages with a selector."""
