"""`aerobee group reset-offset` and `forget`: their targets, and the messages that they affect."""
