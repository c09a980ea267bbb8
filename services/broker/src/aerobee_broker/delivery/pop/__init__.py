"""Messages on lease: pop, acknowledgement, invisible durations, and the lease journal."""
