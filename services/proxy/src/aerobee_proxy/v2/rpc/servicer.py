"""All RPCs of MessagingService in one object, as the chassis binds them."""

from __future__ import annotations

from apache.rocketmq.v2 import service_pb2 as pb

from aerobee_proxy.v2.context import Parts
from aerobee_proxy.v2.rpc.clients.heartbeat import heartbeat
from aerobee_proxy.v2.rpc.clients.notify_client_termination import notify_client_termination
from aerobee_proxy.v2.rpc.clients.query_assignment import query_assignment
from aerobee_proxy.v2.rpc.clients.query_route import query_route
from aerobee_proxy.v2.rpc.clients.telemetry import Telemetry
from aerobee_proxy.v2.rpc.clients.unimplemented import not_offered
from aerobee_proxy.v2.rpc.consuming.ack_message import ack_message
from aerobee_proxy.v2.rpc.consuming.change_invisible_duration import change_invisible_duration
from aerobee_proxy.v2.rpc.consuming.forward_to_dead_letter_queue import forward_to_dead_letter_queue
from aerobee_proxy.v2.rpc.consuming.offsets import get_offset, query_offset, update_offset
from aerobee_proxy.v2.rpc.consuming.pull_message import pull_message
from aerobee_proxy.v2.rpc.consuming.receive_message import receive_message
from aerobee_proxy.v2.rpc.pipeline import streaming, unary
from aerobee_proxy.v2.rpc.sending.end_transaction import end_transaction
from aerobee_proxy.v2.rpc.sending.recall_message import recall_message
from aerobee_proxy.v2.rpc.sending.send_message import send_message


class Servicer:
    def __init__(self, parts: Parts) -> None:
        self.query_route = unary(parts, query_route, pb.QueryRouteResponse)
        self.heartbeat = unary(parts, heartbeat, pb.HeartbeatResponse)
        self.send_message = unary(parts, send_message, pb.SendMessageResponse)
        self.query_assignment = unary(parts, query_assignment, pb.QueryAssignmentResponse)
        self.receive_message = streaming(
            parts, receive_message, pb.ReceiveMessageResponse, _delivery_timestamp
        )
        self.ack_message = unary(parts, ack_message, pb.AckMessageResponse)
        self.forward_message_to_dead_letter_queue = unary(
            parts, forward_to_dead_letter_queue, pb.ForwardMessageToDeadLetterQueueResponse
        )
        self.change_invisible_duration = unary(
            parts, change_invisible_duration, pb.ChangeInvisibleDurationResponse
        )
        self.pull_message = streaming(parts, pull_message, pb.PullMessageResponse)
        self.update_offset = unary(parts, update_offset, pb.UpdateOffsetResponse)
        self.get_offset = unary(parts, get_offset, pb.GetOffsetResponse)
        self.query_offset = unary(parts, query_offset, pb.QueryOffsetResponse)
        self.end_transaction = unary(parts, end_transaction, pb.EndTransactionResponse)
        self.telemetry = Telemetry(parts).telemetry
        self.notify_client_termination = unary(
            parts, notify_client_termination, pb.NotifyClientTerminationResponse
        )
        self.recall_message = unary(parts, recall_message, pb.RecallMessageResponse)
        self.sync_lite_subscription = unary(
            parts, not_offered("lite topics"), pb.SyncLiteSubscriptionResponse
        )


def _delivery_timestamp(parts: Parts) -> pb.ReceiveMessageResponse:
    response = pb.ReceiveMessageResponse()
    response.delivery_timestamp.FromMilliseconds(parts.clock.now_ms())
    return response
