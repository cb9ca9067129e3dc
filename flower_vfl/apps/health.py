"""A check of Flower's health service, for a unit or a container.

``python -m flower_vfl.apps.health HOST:PORT [SECONDS]`` exits with 0 if it answers within SECONDS. Flower's
SuperLink, SuperNode and SuperExec serve it with ``--health-server-address``, as gRPC without TLS: bind it to the
loopback. It shows that the process has started and answers, no more.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

_PAUSE = 0.5


def is_serving(address: str, *, seconds: float) -> bool:
    """Return True if the health service at an address answers within `seconds` seconds that it serves."""
    deadline = time.monotonic() + seconds
    while True:
        left = max(_PAUSE, deadline - time.monotonic())
        with grpc.insecure_channel(address, [("grpc.enable_http_proxy", 0)]) as channel:
            try:
                answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=left)
                if answer.status == health_pb2.HealthCheckResponse.SERVING:
                    return True
            except grpc.RpcError:
                pass
        if time.monotonic() >= deadline:
            return False
        time.sleep(_PAUSE)


def main(arguments: Sequence[str]) -> str | int:
    """Return 0 if the service answers, else an error message."""
    if len(arguments) not in (1, 2) or (len(arguments) == 2 and not arguments[1].isdecimal()):
        return "usage: python -m flower_vfl.apps.health HOST:PORT [SECONDS]"
    address, seconds = arguments[0], float(arguments[1]) if len(arguments) == 2 else 0.0
    return 0 if is_serving(address, seconds=seconds) else f"{address} does not answer that it serves"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
