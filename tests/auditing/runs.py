"""Audits of synthetic trainings, whose embeddings and gradients depend on known labels."""

import numpy as np
import torch

from flower_vfl.auditing.halves import Split
from flower_vfl.auditing.informed import InformedAudit
from flower_vfl.auditing.recorder import NoRecorder
from flower_vfl.protocol.schedule import Schedule

BATCH, WIDTH = 256, 8


def audit_of(labels, *, epochs=1, classes=2, seed=0, rows=20_000, positives=(1,), members=(), every=1, periods=()):
    """Return an audit, and the schedule of its training, in time order if it has periods."""
    schedule = Schedule(seed, len(labels), 0, BATCH, BATCH, len(periods) or epochs, validation=0.0, periods=periods)
    audit = InformedAudit(
        labels,
        classes,
        positives,
        schedule,
        Split(seed + 1),
        party="a",
        defended=True,
        recorder=NoRecorder(),
        rows=rows,
        members=members,
        every=every,
    )
    return audit, schedule


def follow(audit, schedule, send, steps=None, widths=()):
    """Pass steps to an audit; `send` returns embeddings and gradients (B, D) for the rows of a step."""
    for step in range(schedule.steps) if steps is None else steps:
        rows = schedule.train_batch(step)
        z, g = send(step, rows)
        audit.observe(step, schedule.epoch_of(step), rows, torch.as_tensor(z), torch.as_tensor(g), widths)


def entries_of(labels, send, *, widths=(), **options):
    """Return the entries of an audit of a whole training: of gradients alone, and with embeddings."""
    audit, schedule = audit_of(labels, **options)
    follow(audit, schedule, send, widths=widths)
    audit.finish()
    alone, joint = (entry for entry in audit.entries() if entry["attack"] == "informed")
    return alone, joint


def entry_of_gradients(labels, send, **options):
    """Return the entry of gradients alone, for which no reader of embeddings is fitted."""

    def without_embeddings(step, rows):
        return np.zeros((len(rows), 0), dtype=np.float32), send(step, rows)[1]

    return entries_of(labels, without_embeddings, **options)[0]


def noise(step, rows, *, salt=0, width=WIDTH):
    """Return normal numbers (B, D) as float32, seeded by the step."""
    return np.random.default_rng([step, salt, int(rows[0])]).normal(size=(len(rows), width)).astype(np.float32)
