"""The store: bytes on a disk. Synchronous, with one owner; knows no RPC and no rule of delivery."""
