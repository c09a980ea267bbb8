"""Where a broker group keeps its epoch, its master and its in-sync set."""
