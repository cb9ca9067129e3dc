"""A digest of the frames that feature parties receive in a run, to test what these depend on."""

import hashlib

from flower_vfl.apps import run
from flower_vfl.data.store.memory import MemoryData
from flower_vfl.transport.inproc import InprocLink


class Sent:
    """A digest of all frames that parties are sent, and their number."""

    def __init__(self, monkeypatch):
        self.digest, self.count, genuine = hashlib.sha256(), 0, InprocLink.send

        def send(link, frame):
            self.count += 1
            self.digest.update(repr((link.party, frame.kind, frame.step, sorted(frame.fields.items()))).encode())
            for name, tensor in sorted(frame.tensors.items()):
                self.digest.update(name.encode() + tensor.detach().contiguous().numpy().tobytes())
            genuine(link, frame)

        monkeypatch.setattr(InprocLink, "send", send)


def sent_for(labels, data, given, monkeypatch):
    """Return the digest and number of the frames of a run with these labels, and its summary."""
    other = MemoryData("toy", {name: data.party(name) for name in data.parties}, "label", labels)
    with monkeypatch.context() as patch:
        sent = Sent(patch)
        summary = run(given, data=lambda _: other).summary
    return sent.digest.hexdigest(), sent.count, summary
