"""Replicate a broker: elect a master, run as master or slave, and copy the log.

The folders, each above the next: `election` decides which replica is master, `role` runs this
process as master or slave, `rpc` carries calls between replicas, `log` copies the log, and
`in_sync` keeps the set of replicas that must have each message. `wiring` connects them.
"""
