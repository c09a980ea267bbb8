"""The columns of a message, by name and kind. The Spark schema (`schema.py`) and the Arrow schema
(`columns.py`) are made of them, each without the other's library. Pure.
"""

from __future__ import annotations

STRING, INT, LONG, BINARY, TIMESTAMP, STRING_MAP = (
    "string",
    "int",
    "bigint",
    "binary",
    "timestamp",
    "map<string,string>",
)

# name → kind
COLUMNS = {
    "topic": STRING,
    "brokerName": STRING,
    "queueId": INT,
    "queueOffset": LONG,
    # The property UNIQ_KEY, which the producer set; else offsetMsgId.
    "msgId": STRING,
    # Store host and physical offset, in hex.
    "offsetMsgId": STRING,
    "tags": STRING,
    # Several are separated by spaces.
    "keys": STRING,
    "body": BINARY,
    # Bytes of the whole body, also when it is cut or left out.
    "bodySize": INT,
    "flag": INT,
    "sysFlag": INT,
    "bornTimestamp": TIMESTAMP,
    "storeTimestamp": TIMESTAMP,
    # "ip:port"
    "bornHost": STRING,
    "storeHost": STRING,
    "reconsumeTimes": INT,
    "properties": STRING_MAP,
}
