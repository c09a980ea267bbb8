"""Name the handlers of apache.rocketmq.v2.Admin, one for each of its 16 RPCs."""

from __future__ import annotations

from types import SimpleNamespace

from aerobee_foreign.apache.rocketmq.v2 import admin_pb2 as pb

from aerobee_proxy.v2.admin.calls import AdminCalls
from aerobee_proxy.v2.admin.clients import ClientRpcs
from aerobee_proxy.v2.admin.groups import GroupRpcs
from aerobee_proxy.v2.admin.messages import MessageRpcs
from aerobee_proxy.v2.admin.process import ProcessRpcs
from aerobee_proxy.v2.admin.topics import TopicRpcs

DESCRIPTOR = pb.DESCRIPTOR.services_by_name["Admin"]


def handlers(
    calls: AdminCalls,
    *,
    topics: TopicRpcs,
    groups: GroupRpcs,
    clients: ClientRpcs,
    messages: MessageRpcs,
    process: ProcessRpcs,
) -> SimpleNamespace:
    """Return the handlers by their names in snake_case."""
    answered = calls.answered
    return SimpleNamespace(
        change_log_level=calls.failing(process.change_log_level),
        get_proxy_runtime_stats=answered(
            pb.GetProxyRuntimeStatsResponse, process.get_proxy_runtime_stats
        ),
        describe_topic_status=answered(
            pb.DescribeTopicStatusResponse, topics.describe_topic_status
        ),
        get_topic_route=answered(pb.GetTopicRouteResponse, topics.get_topic_route),
        list_subscription=answered(pb.ListSubscriptionResponse, groups.list_subscription),
        describe_subscription=answered(
            pb.DescribeSubscriptionResponse, groups.describe_subscription
        ),
        delete_subscription=answered(pb.DeleteSubscriptionResponse, groups.delete_subscription),
        list_consumer_connection=answered(
            pb.ListConsumerConnectionResponse, groups.list_consumer_connection
        ),
        describe_group_accumulation=answered(
            pb.DescribeGroupAccumulationResponse, groups.describe_group_accumulation
        ),
        query_time_span=answered(pb.QueryTimeSpanResponse, groups.query_time_span),
        reset_group_offset=answered(pb.ResetGroupOffsetResponse, groups.reset_group_offset),
        print_thread_stack_trace=answered(
            pb.PrintThreadStackTraceResponse, clients.print_thread_stack_trace
        ),
        verify_message=answered(pb.VerifyMessageResponse, clients.verify_message),
        get_consumer_running_info=answered(
            pb.GetConsumerRunningInfoResponse, clients.get_consumer_running_info
        ),
        query_message=answered(pb.ListMessageResponse, messages.query_message),
        admin_send_message=answered(pb.AdminSendMessageResponse, messages.admin_send_message),
    )
