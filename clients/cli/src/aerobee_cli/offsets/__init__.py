"""`aerobee group reset-offset` and `forget`: what they mean, and what they cost."""
