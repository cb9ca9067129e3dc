"""(b) A step over `stream` against a raw gRPC echo of the same bytes plus the computation of a step.

The feature party is a process of its own; both streams use mutual TLS and the same channel options. The computation is
a step of the plain joined loop of `inproc.py`, which does what both parties do together. Twice: the census preset
(32 wide, 128 KiB each way) and a cut of 128 (512 KiB). Attacks off. Target: at most 1.5 times.
"""

from __future__ import annotations

import os
import queue
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import torch
from harness import PROCESSES, Enough, Gate, Sample, Times, arguments, compare, report
from lanes import joined, preset, split_processes

from flower_vfl.config import Config
from flower_vfl.protocol.frame import Frame, Kind, encode, to_records
from flower_vfl.transport.authority import SERVER_NAME, Authority, Identity
from flower_vfl.transport.wire import options

TARGET = 1.5
_METHOD = "/echo/Echo"


def echo(gate: Gate, size: int) -> None:
    """Run the label party's side of a raw echo: send a payload and receive one of the same size, repeatedly."""
    authority, payload, limit = Authority(), os.urandom(size), 2 * size + 65_536
    over: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

    def exchange(requests: Iterator[bytes], _context: Any) -> Iterator[bytes]:
        try:
            next(requests)  # the greeting
            while True:
                yield payload
                if len(next(requests)) != size:
                    raise ValueError("the echo came back in another size")
                gate.tick()
        except Enough:
            over.put(None)
        except Exception as error:  # noqa: BLE001 - raised again in the main thread
            over.put(error)

    server = grpc.server(ThreadPoolExecutor(2), options=options(limit))
    handler = grpc.stream_stream_rpc_method_handler(exchange)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("echo", {"Echo": handler}),))
    identity = authority.server()
    credentials = grpc.ssl_server_credentials(
        [(identity.key, identity.certificate)], authority.certificate, require_client_auth=True
    )
    port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    peer = PROCESSES.Process(target=_peer, args=(port, authority.certificate, authority.client("peer"), size, limit))
    peer.start()
    try:
        if (error := over.get()) is not None:
            raise error
    finally:
        server.stop(grace=None).wait()
        peer.join()


def _peer(port: int, authority: bytes, identity: Identity, size: int, limit: int) -> None:
    """Run the feature party's side: answer every message with a payload."""
    payload = os.urandom(size)
    outgoing: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    outgoing.put(b"hello")
    credentials = grpc.ssl_channel_credentials(authority, identity.key, identity.certificate)
    settings = [*options(limit), ("grpc.ssl_target_name_override", SERVER_NAME)]
    with grpc.secure_channel(f"127.0.0.1:{port}", credentials, settings) as channel:
        try:
            for _ in channel.stream_stream(_METHOD)(iter(outgoing.get, None)):
                outgoing.put(payload)
        except grpc.RpcError:
            return  # the benchmark is over


def frame_bytes(config: Config) -> int:
    """Return the bytes of a frame with one batch of embeddings."""
    tensor = torch.zeros(config.training.batch_size, config.model.cut)
    return len(encode(to_records(Frame(Kind.EMBEDDING, 1, tensors={"embedding": tensor}), "0" * 32)))


def measure(config: Config, *, starts: int, blocks: int, steps: int) -> dict[str, Any]:
    """Compare one configuration."""
    size = frame_bytes(config)
    lanes = (("stream", split_processes, config), ("echo", echo, size), ("plain", joined, config))
    measured = compare(lanes, starts=starts, blocks=blocks, steps=steps)
    step, exchange, computation = measured.times
    return {
        "ratio": over_both(step, exchange, computation).describe(),
        "bytes_each_way": size,
        "stream_ms": step.milliseconds,
        "echo_ms": exchange.milliseconds,
        "computation_ms": computation.milliseconds,
        "equal_losses": measured.equal_values(0, 2),
    }


def over_both(step: Times, exchange: Times, computation: Times) -> Sample:
    """Return the ratio of a step to an echo and the computation, within each triple."""
    return Sample([a / (b + c) for a, b, c in zip(step.wall, exchange.wall, computation.wall, strict=True)])


def main() -> None:
    """Measure and report."""
    quick = arguments(__doc__).quick
    size = {"starts": 1, "blocks": 2, "steps": 2} if quick else {"starts": 4, "blocks": 24, "steps": 20}
    common: dict[str, dict[str, Any]] = {"attack": {"names": []}, "transport": {"kind": "stream"}}
    models: dict[str, dict[str, Any]] = {"census": {}, **({} if quick else {"cut 128": {"cut": 128}})}
    cuts = {name: measure(preset(quick, **common, model=model), **size) for name, model in models.items()}
    worst = max(cuts.values(), key=lambda cut: cut["ratio"]["median"])
    report(
        "stream",
        target=f"<= {TARGET} x (raw gRPC echo + computation)",
        met=worst["ratio"]["median"] <= TARGET,
        quick=quick,
        ratio=worst["ratio"],
        cuts=cuts,
    )


if __name__ == "__main__":
    main()
