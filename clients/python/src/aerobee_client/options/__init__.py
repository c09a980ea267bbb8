"""Define the options of the clients: names, defaults, bounds."""
