"""Users of a proxy and their policies. This package does not depend on the public protocol."""
