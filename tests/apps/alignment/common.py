"""Parties with files of their own, and a grid that records, or spoils, messages."""

from __future__ import annotations

import random
from contextlib import contextmanager

from flwr.app import ArrayRecord, RecordDict

from flower_vfl.apps import make_client_app
from flower_vfl.apps.alignment.start import align_as_label
from flower_vfl.apps.local_grid import LocalGrid
from flower_vfl.config import build_config, to_run_config
from flower_vfl.protocol.frame import Frame, from_records, to_records


def write_people(path, ids, columns):
    """Write a CSV with seeded numbers that depend on the person and the column alone; `label` is 0 or 1."""
    lines = [",".join(["id", *columns])]
    for value in ids:
        numbers = [random.Random(f"{value} {column}").gauss(0, 1) for column in columns]
        cells = [str(int(x > 0)) if c == "label" else f"{x:.4f}" for c, x in zip(columns, numbers, strict=True)]
        lines.append(",".join([value, *cells]))
    path.write_text("\n".join(lines) + "\n", encoding="utf8")
    return str(path)


def people(name, first, last):
    """Return IDs in a shuffled order that differs from party to party."""
    ids = [f"person-{number:04d}" for number in range(first, last)]
    random.Random(name).shuffle(ids)
    return ids


def federation(folder, spans, **align):
    """Write each party's file, people first to last, and return the configuration that names them all."""
    files = {
        party: write_people(
            folder / f"{party}.csv", people(party, *span), ["label"] if party == "label" else [f"{party}1", f"{party}2"]
        )
        for party, span in spans.items()
    }
    labels = files.pop("label")
    options = {"files": files, "labels_file": labels}
    return build_config({"data": {"name": "files", "options": options}, "align": align})


class WatchedGrid(LocalGrid):
    """Keeps every message with its direction and its node, after `spoil` has changed it."""

    def __init__(self, config, parties, spoil=None, client_app=None):
        super().__init__(client_app or make_client_app(config=config), parties, to_run_config(config))
        self.seen = []
        self._spoil = spoil or (lambda party, frame: frame)

    def push_messages(self, messages):
        messages = list(messages)
        for message in messages:
            self.seen.append(("down", message.metadata.dst_node_id - 2, message.content.copy()))
        return super().push_messages(messages)

    def pull_messages(self, message_ids):
        replies = list(super().pull_messages(message_ids))
        for reply in replies:
            if reply.has_error():
                continue
            party = reply.metadata.src_node_id - 2
            session = str(reply.content["header"]["session"])
            spoilt = self._spoil(party, from_records(reply.content, session))
            for name, record in to_records(spoilt, session).items():
                reply.content[name] = record
            self.seen.append(("up", party, reply.content.copy()))
        return replies

    def name_nodes(self, configs):
        """Turn the grid into a deployment in which each node has its owner's --node-config."""
        self.simulation = False
        for context, config in zip(self._contexts.values(), configs, strict=True):
            context.node_config = dict(config)


def sizes(seen):
    """Return direction, node and size of each message, in an order that threads do not change."""
    return sorted(
        (way, node, str(content["header"]["fields"]).split('"stage"')[-1], len(array.data))
        for way, node, content in seen
        for record in content.values()
        if isinstance(record, ArrayRecord)
        for array in record.values()
    )


def all_bytes(content: RecordDict) -> bytes:
    """Return the bytes of all records of a message."""
    found = []
    for record in content.values():
        if isinstance(record, ArrayRecord):
            found += [array.data for array in record.values()]
        else:
            found.append(repr(dict(record)).encode())
    return b"\0".join(found)


@contextmanager
def pieces_of(monkeypatch, blocks):
    """Limit each message to this number of blocks."""
    from flower_vfl.apps.alignment.label import LabelSide

    with monkeypatch.context() as patch:
        patch.setattr(LabelSide, "_piece", property(lambda self: blocks))
        yield


def run(config, out, parties, spoil=None, progress=None):
    """Align on a watched grid; return it and the error that was raised, or None."""
    grid = WatchedGrid(config, parties, spoil)
    error = None
    try:
        align_as_label(grid, config, out, progress or (lambda what, done: None))
    except Exception as raised:  # noqa: BLE001 - handed to the test
        error = raised
    grid.join(20)
    return grid, error


def changed(frame, **fields):
    """Return a message with changed fields."""
    return Frame(frame.kind, frame.step, {**frame.fields, **fields}, frame.tensors)


def with_tensor(frame, name, tensor):
    """Return a message with a replaced tensor."""
    return Frame(frame.kind, frame.step, frame.fields, {**frame.tensors, name: tensor})
