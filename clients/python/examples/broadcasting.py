"""Broadcasting: every member gets every message, here two price lists kept up to date.

Each keeps its own offsets: in memory, or in a file (`offset_file=`), where it goes on after a
restart.
"""

import os
import threading

from aerobee_client import Message, MessageModel, Producer, PushConsumer, ReceivedMessage

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


class PriceList:
    def __init__(self) -> None:
        self.prices: dict[str, str] = {}
        self.complete = threading.Event()

    def __call__(self, message: ReceivedMessage) -> None:
        self.prices[message.keys[0]] = message.body.decode()
        if len(self.prices) == 3:
            self.complete.set()


def member(listener: PriceList) -> PushConsumer:
    broadcasting = MessageModel.BROADCASTING
    consumer = PushConsumer("shops", listener, namesrv=NAMESRV, message_model=broadcasting)
    consumer.subscribe("prices")
    return consumer


lists = [PriceList(), PriceList()]
with member(lists[0]), member(lists[1]), Producer(namesrv=NAMESRV) as producer:
    for name, price in (("apple", "0.30"), ("pear", "0.40"), ("plum", "0.10")):
        producer.send(Message("prices", price.encode(), keys=name))
    for each in lists:
        assert each.complete.wait(60)
        print(sorted(each.prices.items()))
