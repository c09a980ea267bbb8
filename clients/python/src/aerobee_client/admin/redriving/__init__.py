"""Jobs over the dead letters of a group on all brokers that have them."""
