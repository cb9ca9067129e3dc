"""A digest of the frames that feature parties receive in a run, for tests of what the frames depend on."""

import hashlib

from flower_vfl.apps import run
from flower_vfl.data.store.memory import MemoryData
from flower_vfl.transport.inproc import InprocLink


class Sent:
    """A digest of all frames that are sent to parties, and their number."""

    def __init__(self, monkeypatch):
        self.digest, self.count, original = hashlib.sha256(), 0, InprocLink.send

        def send(link, frame):
            self.count += 1
            self.digest.update(repr((link.party, frame.kind, frame.step, sorted(frame.fields.items()))).encode())
            for name, tensor in sorted(frame.tensors.items()):
                self.digest.update(name.encode() + tensor.detach().contiguous().numpy().tobytes())
            original(link, frame)

        monkeypatch.setattr(InprocLink, "send", send)


def sent_for(labels, data, config, monkeypatch):
    """Return the digest and number of the frames of a run with these labels, and its summary."""
    relabelled = MemoryData("toy", {name: data.party(name) for name in data.parties}, "label", labels)
    with monkeypatch.context() as context:
        sent = Sent(context)
        summary = run(config, data=lambda _: relabelled).summary
    return sent.digest.hexdigest(), sent.count, summary
