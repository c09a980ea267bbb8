"""Users and policies. Knows no public protocol."""
