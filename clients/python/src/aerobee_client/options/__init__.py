"""Define the options of the clients, with their defaults and bounds."""
