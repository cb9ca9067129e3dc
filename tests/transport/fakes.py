"""A fake feature party without a model, the ClientApp that runs it, and a minimal label party."""

from __future__ import annotations

import torch
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

from flower_vfl.protocol.frame import OVERHEAD, Frame, Kind
from flower_vfl.transport.dialling import attend
from flower_vfl.transport.inproc import InprocEndpoint
from flower_vfl.transport.messages import answer, bundle
from flower_vfl.transport.sessions import FINISHED, OFFER, OPEN, REPLY, SPARE


class FakeParty:
    """A feature party whose answers depend on every gradient so far, so that a lost or swapped frame changes them.

    `at` maps a step, or `Kind.FINISH`, to a function that is called before the answer; it may raise or wait.
    """

    def __init__(self, name="a", *, rows=3, width=4, at=None):
        self.name, self.finished = name, False
        self.rows, self.width, self.at = rows, width, at or {}
        self.seen = []
        self.weight = torch.linspace(0.5, 1.0 + len(name), width)

    @property
    def requests(self):
        """The received (kind, step) pairs without gradients that came without a request: transports differ in these."""
        return [frame for frame in self.seen if frame != (Kind.STEP, -1)]

    @property
    def frame_limit(self):
        return OVERHEAD + 8 * self.rows * (self.width + 1)

    def hello(self):
        return Frame(Kind.HELLO, fields={"party": self.name, "width": self.width})

    def handle(self, frame):
        self.seen.append((frame.kind, frame.step))
        if frame.kind is Kind.FINISH:
            self.finished = True
            self.at.get(frame.kind, lambda: None)()
            return Frame(Kind.REPORT, fields={"report": f"{self.name} answered {len(self.requests)} requests"})
        if frame.kind is not Kind.STEP:
            return None
        if frame.integer("gradient_of") >= 0:
            gradient = frame.tensor("gradient", shape=(self.rows, self.width), dtype=torch.float32)
            self.weight = 0.9 * self.weight + torch.sin(gradient).mean(dim=0)
        if frame.step < 0:
            return None
        self.at.get(frame.step, lambda: None)()
        rows = torch.arange(float(self.rows)).view(-1, 1) + frame.step
        return Frame(Kind.EMBEDDING, frame.step, tensors={"embedding": torch.cos(rows) * self.weight})


def client_app(parties, *, timeout=5.0):
    """Return a ClientApp in which the node of partition i runs party i.

    Instead of a party: None for a spare node, an exception that the node fails with, or a function that answers.
    """
    app = ClientApp()

    def party_of(context):
        return parties[int(context.node_config["partition-id"])]

    @app.train()
    def train(message, context):
        party, offer = party_of(context), message.content[OFFER]
        if isinstance(party, Exception):
            raise party
        if callable(party):
            return party(message)
        if party is None:
            content = RecordDict({REPLY: ConfigRecord({"status": SPARE, "reason": "not needed"})})
        elif offer["kind"] == "messages":
            content = bundle([party.hello()], offer["session"], offer["wire-dtype"])
            content[REPLY] = ConfigRecord({"status": OPEN})
            context.state[OFFER] = offer
        else:
            if offer["kind"] == "inproc":
                InprocEndpoint.attend(offer["session"], party)
            else:
                attend(offer, offer["session"], party, timeout=timeout)
            content = RecordDict({REPLY: ConfigRecord({"status": FINISHED})})
        return Message(content, reply_to=message)

    @app.train("frames")
    def frames(message, context):
        offer = context.state[OFFER]
        content = answer(message.content, offer["session"], offer["wire-dtype"], party_of(context))
        return Message(content, reply_to=message)

    return app


def fit(link, *, rows=3, width=4):
    """Set the shape and the frame limit of a link, as the label party does in the handshake."""
    link.shape = (width,)
    link.frame_limit = OVERHEAD + 8 * rows * (width + 1)


def converse(links, steps, *, ahead=1, timeout=10.0):
    """Run `steps` steps with `ahead` of them in flight; return the embeddings of each step by party."""
    answers = []
    for step in range(min(ahead, steps)):
        for link in links.values():
            link.send(Frame(Kind.STEP, step, {"gradient_of": -1}))
    for step in range(steps):
        for link in links.values():
            link.flush()
        received = {party: link.receive(timeout) for party, link in links.items()}
        assert {(frame.kind, frame.step) for frame in received.values()} == {(Kind.EMBEDDING, step)}
        answers.append({party: frame.tensors["embedding"] for party, frame in received.items()})
        request = step + ahead if step + ahead < steps else -1
        for party, link in links.items():
            gradient = answers[-1][party] * 0.1 + step
            link.send(Frame(Kind.STEP, request, {"gradient_of": step}, {"gradient": gradient}))
    return answers
