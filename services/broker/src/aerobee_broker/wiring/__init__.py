"""The wiring: creates the parts of a broker and connects them. Starts nothing."""
