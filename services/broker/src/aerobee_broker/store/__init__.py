"""The store: bytes on a disk. Synchronous, with one owner; independent of RPCs and delivery."""
