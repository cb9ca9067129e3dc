"""The label party's handshake with an arriving party: the checks, the shapes, and the audit channel."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping

import numpy as np
import torch

from flower_vfl.attacks import InferenceAttack, JointAttack
from flower_vfl.auditing.audit_labels import AuditLabels
from flower_vfl.config import Config
from flower_vfl.errors import ConfigError, PartyError, ProtocolError
from flower_vfl.parties.feature import batch_limit
from flower_vfl.protocol.frame import Frame, Kind
from flower_vfl.protocol.printable import printable
from flower_vfl.protocol.schedule import Schedule
from flower_vfl.protocol.tensors import DTYPES
from flower_vfl.training.protocols import StrategySettings
from flower_vfl.transport.base import Link, expect
from flower_vfl.version import refusal, software, unequal

_log = logging.getLogger(__name__)

_PIECES_AT_ONCE = 64
"""Number of pieces of labels that are sent at once: a transport buffers few unconfirmed messages."""


def check_fit(link: Link, config: Config, schedule: Schedule, alignment: str, *, audited: Collection[str] = ()) -> None:
    """Refuse a party with other rows or another configuration, and set the shape of its embeddings on its link.

    The report of an `audited` party covers each attack, layer and class, and can be larger than its embeddings.

    Raises
    ------
    PartyError
        When its rows, IDs or configuration differ.
    ProtocolError, ConfigError
        As in `negotiate`.
    """
    check_software(link)
    hello = link.hello
    expected: dict[str, str | int] = {
        "rows": schedule.rows,
        "test_rows": schedule.test_rows,
        "alignment": alignment,
        "schedule": schedule.digest,
        "in_flight": config.transport.in_flight,
    }
    other_ids = "its IDs differ or are in another order: prepare or align the data again at both parties"
    cures = {
        **dict.fromkeys(("rows", "test_rows", "alignment"), other_ids),
        "schedule": "it runs with another configuration, or its rows are of other days",
    }
    for name, value in expected.items():
        if hello.fields.get(name) == value:
            continue
        differs = f"its {name} is {printable(hello.fields.get(name), 20)}, here it is {printable(value, 20)}"
        if name == "alignment":  # the message goes to the party, and confirms a guess of all IDs
            differs = "its alignment is another than here"
            theirs = printable(hello.fields.get(name), 12)
            _log.error("the alignment of party %r is %s, here it is %.12s", link.party, theirs, value)
        raise PartyError(
            f"party {link.party!r} does not fit: {differs}; "
            f"{cures.get(name, 'give both the same data and configuration')}"
        )
    negotiate(link, config, max(schedule.batch_size, schedule.eval_batch_size))
    if link.party in audited:
        link.frame_limit = max(link.frame_limit, config.transport.max_frame_mib * 2**20)


def check_software(link: Link) -> None:
    """Refuse a party with other code of this package on its host, and warn where bits may differ.

    Raises
    ------
    PartyError
        When its code differs; the message names the software of each host, and the host to change.
    """
    host, asking = f"the host of party {link.party!r}", "the label party's host"
    words = refusal(link.hello.fields, host, asking=asking)
    if words:
        raise PartyError(f"party {link.party!r} does not fit: {words}, then start its SuperNode or SuperLink again")
    words = unequal(link.hello.fields, host, asking=asking)
    if words:
        _log.warning(
            "%s: numbers are valid, and may differ in single bits from those of equal versions; install both hosts "
            "with -c constraints.txt",
            words,
        )


def software_of(links: Mapping[str, Link]) -> dict[str, dict[str, str]]:
    """Return the software of each party's host, which `check_software` has accepted."""
    return {
        party: {name: printable(link.hello.fields.get(name), 64) for name in software()}
        for party, link in links.items()
    }


def negotiate(link: Link, config: Config, rows: int) -> None:
    """Set the shape and number format of a party's embeddings on its link, and the frame limit for `rows` of them.

    Raises
    ------
    ProtocolError
        When the party's shape or number format is impossible.
    ConfigError
        When its messages would be larger than the transport allows.
    """
    hello = link.hello
    try:
        shape = tuple(json.loads(hello.text("shape")))
    except (ValueError, TypeError, RecursionError):
        shape = ()
    if not 0 < len(shape) < 7 or not all(type(size) is int and 0 < size <= 2**24 for size in shape):
        raise ProtocolError(f"party {link.party!r} reports an impossible shape: {hello.fields.get('shape')!r}")
    dtype = DTYPES.get(hello.text("dtype"))
    if dtype is None or not dtype.is_floating_point:
        raise ProtocolError(f"party {link.party!r} reports no float format: {hello.text('dtype')!r}")
    link.shape, link.dtype = shape, dtype
    link.frame_limit = batch_limit(rows, shape)
    largest = config.transport.max_frame_mib * 2**20
    if config.transport.kind != "inproc" and link.frame_limit > largest:
        raise ConfigError(
            f"embeddings {shape} of party {link.party!r} need messages of {link.frame_limit / 2**20:.0f} MiB; set "
            "transport.max_frame_mib to that or more, or training.eval_batch_size and training.batch_size lower"
        )


def send_audit(base: StrategySettings, links: Mapping[str, Link]) -> None:
    """In a simulation, send true labels to the parties' attack evaluators and wait for their confirmation.

    Those of the test rows are sent too if an attack of the run is scored on them.

    Raises
    ------
    PartyError
        When a party fails or does not confirm a piece within `transport.step_timeout` seconds.
    """
    labels, timeout = base.labels, base.config.transport.step_timeout
    test = any(isinstance(attack, InferenceAttack | JointAttack) for attack in base.attacks)
    tables = {"train": labels.train, **({"test": labels.test} if test else {})}
    size = AuditLabels.PIECE
    pieces = [(table, low) for table, numbers in tables.items() for low in range(0, len(numbers), size)]
    for first in range(0, len(pieces), _PIECES_AT_ONCE):
        group = list(enumerate(pieces[first : first + _PIECES_AT_ONCE], first))
        for link in links.values():
            for number, (table, offset) in group:
                piece = torch.from_numpy(tables[table][offset : offset + size].astype(np.uint8))
                fields: dict[str, str | int] = {"table": table, "offset": offset, "classes": labels.classes}
                link.send(Frame(Kind.AUDIT, number, fields, {"labels": piece}))
            link.flush()
        for party, link in links.items():
            for number, _ in group:
                expect(link.receive(timeout), Kind.AUDITED, number, party)
