"""Message delivery: the recipient, time and number of deliveries of each message.

Does not access files or the network.
"""
