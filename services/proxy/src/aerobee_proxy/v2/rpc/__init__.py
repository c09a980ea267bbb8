"""One module per RPC of apache.rocketmq.v2.MessagingService. Knows no transport."""
