"""Messages on lease: pop, acknowledgement, invisible durations, and the journal that keeps them."""
