"""The label party of Flower's vertical example, as its page describes it: two rounds of messages a step.

There a step takes all rows; here the rows of a batch, so that both sides compute and send the same. Flower's example
does not wait until the gradients have been applied. Here it does: in the simulation the next message may otherwise
overwrite the weights that a client has just stored.
"""

from __future__ import annotations

import itertools

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp
from plain import Labels, Ticks, batch, work

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Ask all clients for the embeddings, and send them the gradients, until the benchmark is over."""
    found = work()
    labels, ticks, nodes = Labels(found), Ticks(), list(grid.get_node_ids())
    for step in itertools.count():
        rows = ConfigRecord({"step": step})
        asked = [Message(RecordDict({"rows": rows}), node, "query.generate_embeddings") for node in nodes]
        replies = sorted(grid.send_and_receive(asked), key=lambda reply: str(reply.content["config"]["party"]))
        parts = [torch.from_numpy(reply.content["arrays"]["embedding"].numpy()) for reply in replies]
        loss, gradient = labels.step(batch(found, step), torch.cat(parts, dim=1))
        sent = [
            Message(
                RecordDict({"rows": rows, "gradients": ArrayRecord({"gradient": Array(part.numpy())})}),
                reply.metadata.src_node_id,
                "train.apply_gradients",
            )
            for reply, part in zip(replies, gradient.split([part.shape[1] for part in parts], dim=1), strict=True)
        ]
        if any(reply.has_error() for reply in grid.send_and_receive(sent)):
            raise RuntimeError("a client could not apply its gradients")
        ticks.tick(loss)
