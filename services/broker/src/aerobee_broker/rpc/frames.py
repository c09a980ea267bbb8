"""Define the frames of streams that carry unary calls to a broker."""

from __future__ import annotations

from aerobee.call.v1 import call_pb2 as pb

from aerobee_broker.errors import InvalidParameter
from aerobee_chassis.rpc.call import Failure
from aerobee_chassis.rpc.multiplexer import Frames


def _success(number: int, response: bytes) -> pb.AnswerFrame:
    return pb.AnswerFrame(id=number, response=response)


def _failure(number: int, failure: Failure) -> pb.AnswerFrame:
    trailers = [pb.CallTrailer(key=key, value=value) for key, value in failure.trailers]
    sent = pb.CallFailure(status=failure.status, message=failure.message, trailers=trailers)
    return pb.AnswerFrame(id=number, failure=sent)


def _duplicate(number: int) -> InvalidParameter:
    return InvalidParameter(f"call {number} is in progress: give each call its own id", "id")


FRAMES = Frames(pb.DESCRIPTOR.services_by_name["CallService"], _success, _failure, _duplicate)
