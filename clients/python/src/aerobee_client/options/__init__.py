"""What may be set of the clients: names, defaults, bounds."""
