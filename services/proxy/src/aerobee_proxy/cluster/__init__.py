"""Name servers, brokers and decisions about messages. Independent of the public protocol."""
