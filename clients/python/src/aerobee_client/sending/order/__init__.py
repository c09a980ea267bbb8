"""Send ordered messages: messages of a message group, and messages to a selected queue."""
