"""Define the results of an admin client: frozen dataclasses.

`dataclasses.asdict` turns them into JSON. `of` makes one from messages of the contract. Times are
milliseconds since the epoch, sizes are bytes.
"""

from aerobee_client.admin.descriptions.brokers import (
    BrokerBacklog,
    BrokerConflict,
    BrokerDescription,
    BrokerStatus,
    ClusterDescription,
    GroupLag,
    LiveBroker,
)
from aerobee_client.admin.descriptions.changes import (
    AlreadyExists,
    Change,
    Created,
    UnreadableQueue,
    Update,
    differences,
)
from aerobee_client.admin.descriptions.clients import (
    ClientDescription,
    ConsumerDescription,
    MemberConflict,
    SubscriptionConflict,
    member_conflicts,
    subscription_conflicts,
)
from aerobee_client.admin.descriptions.groups import (
    BlockedMessageGroup,
    GroupDescription,
    QueueProgress,
)
from aerobee_client.admin.descriptions.lite import (
    LiteClientDescription,
    LiteTopicDescription,
    LiteTopics,
)
from aerobee_client.admin.descriptions.replicas import (
    DivergedFile,
    DivergedMessage,
    DivergedPage,
    PromotionResult,
    ReplicaDescription,
)
from aerobee_client.admin.descriptions.topics import (
    MESSAGE_TYPE,
    Browsed,
    QueueOffset,
    QueueStatus,
    Rebalanced,
    RouteDescription,
    RouteQueues,
    TopicBounds,
    TopicDescription,
    TopicOnBroker,
)

__all__ = [
    "MESSAGE_TYPE",
    "AlreadyExists",
    "BlockedMessageGroup",
    "BrokerBacklog",
    "BrokerConflict",
    "BrokerDescription",
    "BrokerStatus",
    "Browsed",
    "Change",
    "ClientDescription",
    "ClusterDescription",
    "ConsumerDescription",
    "Created",
    "DivergedFile",
    "DivergedMessage",
    "DivergedPage",
    "GroupDescription",
    "GroupLag",
    "LiteClientDescription",
    "LiteTopicDescription",
    "LiteTopics",
    "LiveBroker",
    "MemberConflict",
    "PromotionResult",
    "QueueOffset",
    "QueueProgress",
    "QueueStatus",
    "Rebalanced",
    "ReplicaDescription",
    "RouteDescription",
    "RouteQueues",
    "SubscriptionConflict",
    "TopicBounds",
    "TopicDescription",
    "TopicOnBroker",
    "UnreadableQueue",
    "Update",
    "differences",
    "member_conflicts",
    "subscription_conflicts",
]
