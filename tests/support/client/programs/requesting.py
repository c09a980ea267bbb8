"""A process that sends one request and waits for its reply; made to be killed.

python -m support.client.programs.requesting NAMESRV TOPIC
"""

from __future__ import annotations

import sys
from datetime import timedelta

from aerobee_client import Message, Producer

if __name__ == "__main__":
    namesrv, topic = sys.argv[1:]
    with Producer(namesrv=namesrv) as producer:
        producer.request(Message(topic, b"from a process"), timedelta(seconds=60))
