"""A party of FATE's vertical training of networks: its trainers, with its federation and storage on one machine.

Started without a side it is the guest, which has the labels, and starts the host, which has the features. FATE's
trainers are changed in two points only: the benchmark's file gives the batches, and no gradients are clipped.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import torch
from fate.arch import Context
from fate.arch.computing.backends.standalone import CSession
from fate.arch.federation.backends.standalone import StandaloneFederation
from fate.ml.nn.hetero.hetero_nn import HeteroNNTrainerGuest, HeteroNNTrainerHost, TrainingArguments
from fate.ml.nn.model_zoo.hetero_nn_model import HeteroNNModelGuest, HeteroNNModelHost
from plain import Ticks, optimizer, perceptron, work
from torch.utils.data import SequentialSampler, TensorDataset

SIDES = {"guest": ("guest", "10000"), "host": ("host", "9999")}


class Guest(HeteroNNTrainerGuest):  # type: ignore[misc]
    """A guest that reports the loss of each step to the benchmark."""

    ticks: Ticks

    def training_step(self, *values: Any) -> Any:
        """Make a step and report its loss."""
        loss = super().training_step(*values)
        self.ticks.tick(float(loss))
        return loss

    def _get_train_sampler(self) -> Any:
        return SequentialSampler(self.train_dataset)


class Host(HeteroNNTrainerHost):  # type: ignore[misc]
    """A host that takes rows in the order of the file."""

    def _get_train_sampler(self) -> Any:
        return SequentialSampler(self.train_dataset)


def context(side: str) -> Any:
    """Return FATE's context of one side; both keep their files in the current folder."""
    computing = CSession(data_dir="data")
    federation = StandaloneFederation(computing, "benchmark", SIDES[side], list(SIDES.values()))
    return Context(computing=computing, federation=federation)


def main(side: str) -> None:
    """Train one side until the benchmark is over."""
    found = work()
    rows = torch.cat(found["batches"])
    size = len(found["batches"][0])
    shared = {
        "ctx": context(side),
        "training_args": TrainingArguments(
            num_train_epochs=1_000, per_device_train_batch_size=size, max_grad_norm=0.0, no_cuda=True
        ),
    }
    if side == "host":
        ((party, columns),) = found["columns"].items()
        model = HeteroNNModelHost(bottom_model=perceptron(found["bottoms"][party], last=True))
        Host(model=model, optimizer=optimizer(model, found), train_set=TensorDataset(columns[rows]), **shared).train()
        return
    model = HeteroNNModelGuest(top_model=perceptron(found["top"], last=False), bottom_model=None)
    trainer = Guest(
        model=model,
        optimizer=optimizer(model, found),
        train_set=TensorDataset(found["labels"][rows].unsqueeze(1)),
        loss_fn=torch.nn.BCEWithLogitsLoss(),
        **shared,
    )
    trainer.ticks = Ticks()
    trainer.train()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with subprocess.Popen([sys.executable, __file__, "host"], env=os.environ) as host:
            try:
                main("guest")
            finally:
                host.kill()
