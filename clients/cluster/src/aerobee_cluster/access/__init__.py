"""The access table of a process: its changes, its RPCs, and its exchange with name servers."""
