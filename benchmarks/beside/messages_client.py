"""A feature party of Flower's vertical example: its weights are kept in the node's state from message to message."""

from __future__ import annotations

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from plain import Features, batch, work

app = ClientApp()
FOUND = work()  # as Flower's example: read when the app is imported


def party_of(context: Context) -> tuple[str, Features]:
    """Return the party of this node with the weights that it has now."""
    party = list(FOUND["columns"])[int(context.node_config["partition-id"])]
    features = Features(FOUND, party)
    if "weights" in context.state:
        features.bottom.load_state_dict(context.state["weights"].to_torch_state_dict())
    return party, features


@app.query("generate_embeddings")
def embed(message: Message, context: Context) -> Message:
    """Answer with the embeddings of the rows of a step."""
    party, features = party_of(context)
    embedding = features.forward(batch(FOUND, int(message.content["rows"]["step"])))
    content = {"arrays": ArrayRecord({"embedding": Array(embedding.numpy())}), "config": ConfigRecord({"party": party})}
    return Message(RecordDict(content), reply_to=message)


@app.train("apply_gradients")
def apply(message: Message, context: Context) -> Message:
    """Compute the embeddings again and make a step with the received gradients."""
    _, features = party_of(context)
    features.forward(batch(FOUND, int(message.content["rows"]["step"])))
    features.backward(torch.from_numpy(message.content["gradients"]["gradient"].numpy()))
    context.state["weights"] = ArrayRecord(features.bottom.state_dict())
    return Message(RecordDict(), reply_to=message)
