"""The RPCs of apache.rocketmq.v2.MessagingService. Independent of the transport."""
