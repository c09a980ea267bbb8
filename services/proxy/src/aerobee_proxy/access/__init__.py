"""Users and policies. Independent of the public protocol."""
