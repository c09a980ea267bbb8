"""Values in the routes of topics: bits of permissions, and ids of brokers. They are RocketMQ's."""

from __future__ import annotations

# Bits of the permission of a topic, or of a broker.
READ = 4
WRITE = 2
INHERIT = 1  # a send may create a topic with the settings of this one
READ_WRITE = READ | WRITE
ALL_PERMISSIONS = 15  # with RocketMQ's bit for a priority, 8

# The id by which a master is registered. The other ids of a broker are those of its slaves.
MASTER_ID = 0
# The id of replica 0 while another replica is master.
FORMER_MASTER_ID = 1_000
