"""Properties that a user may set, and that a user may not, whatever way a message takes."""

from __future__ import annotations

CONTROLS = ["\x00", "\r", "\n", "\t", "\x01", "\x02", "\x1f", "\x7f", "\x80", "\x9f"]
REFUSED = [
    *((f"a{control}b", "x") for control in CONTROLS),
    *(("a", f"x{control}y") for control in CONTROLS),
    ("", "x"),
    (" ", "x"),
    ("KEYS", "x"),
]
# Those that a broker finds among encoded properties: no separators, and what has an empty name is
# dropped, as in RocketMQ.
REFUSED_BY_BROKERS = [
    (name, value)
    for name, value in REFUSED
    if name not in {"", "KEYS"} and not {"\x01", "\x02"} & {*name, *value}
]
ACCEPTED = [("a", "x"), ("a b", " "), ("é", "Â¡"), ("名", "值\u00a0"), ("a ", "emoji 🛫")]
