"""Send messages that keep an order: those of a message group, and those to a selected queue."""
