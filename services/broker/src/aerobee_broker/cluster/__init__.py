"""The other processes of a cluster: name servers, to which a broker registers, and brokers."""
