"""Handle the RPCs of apache.rocketmq.v2.MessagingService, independently of the transport."""
