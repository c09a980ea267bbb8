"""The roles of a broker that replicates: one process, master or slave, and what decides which."""
