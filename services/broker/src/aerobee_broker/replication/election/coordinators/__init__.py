"""Keep the epoch, the master and the in-sync set of a broker group."""
