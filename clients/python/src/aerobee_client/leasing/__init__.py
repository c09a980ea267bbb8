"""Messages on lease: receiving from every broker of a topic, settling, renewing."""
