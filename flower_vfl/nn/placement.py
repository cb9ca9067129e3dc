"""The placement of a party's network and its batches: on one device, or with the embedding tables in main memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from flower_vfl.config import Config

EmbeddingDevice = Literal["same", "cpu"]
Precision = Literal["float32", "tf32", "bfloat16"]
_TABLES = (nn.Embedding, nn.EmbeddingBag)


@dataclass(frozen=True, slots=True)
class Placement:
    """The device and the precision of a party's network.

    Parameters
    ----------
    device : str
        Device of the network.
    embeddings : {"same", "cpu"}
        Place of its embedding tables, and of the ids of categories and words that are looked up in them: the same
        device, or main memory, from where only the rows of a batch are copied. That is for vocabularies that do not fit
        on a GPU beside their optimizer's state.
    precision : {"float32", "tf32", "bfloat16"}
        The precision of the network's products. "bfloat16" applies to the network's passes only: weights, outputs,
        losses, defenses and attacks stay in single precision. TF32 is set for the whole process, by the caller.

    Examples
    --------
    >>> Placement("cuda:1", "cpu").mixed, Placement("cpu", "cpu").mixed
    (True, False)
    """

    device: str = "cpu"
    embeddings: EmbeddingDevice = "same"
    precision: Precision = "float32"

    @classmethod
    def of(cls, config: Config) -> Placement:
        """Return the placement of a configuration."""
        return cls(config.device, config.model.embedding_device, config.precision)

    @property
    def on_gpu(self) -> bool:
        """True if the network is not in main memory."""
        return torch.device(self.device).type != "cpu"

    @property
    def mixed(self) -> bool:
        """True if embedding tables are not on the device of the network."""
        return self.on_gpu and self.embeddings == "cpu"

    def place(self, model: nn.Module) -> nn.Module:
        """Move a model to its devices; tables that stay in main memory are never copied to the GPU."""
        if not self.mixed:
            return model.to(self.device)
        moved: dict[nn.Parameter, nn.Parameter] = {}  # a parameter that two parts share stays shared
        for part in model.modules():
            if isinstance(part, _TABLES):
                part.register_forward_hook(partial(_send_rows, self.device))
                continue
            for name, parameter in part.named_parameters(recurse=False):
                if parameter not in moved:
                    copied = parameter.detach().to(self.device)
                    moved[parameter] = nn.Parameter(copied, requires_grad=parameter.requires_grad)
                setattr(part, name, moved[parameter])
            for name, buffer in part.named_buffers(recurse=False):
                setattr(part, name, self.bring(buffer))
        return model

    @property
    def rounding(self) -> float:
        """Largest relative difference of the outputs for one row between batches with different other rows."""
        return {"float32": 1e-4, "tf32": 1e-2, "bfloat16": 1e-1}[self.precision]

    def forward(self, network: Callable[..., Tensor], *inputs: Any) -> Tensor:
        """Return a network's outputs for its inputs, computed in the precision of this placement."""
        if self.precision != "bfloat16":
            return network(*inputs)
        with torch.autocast(torch.device(self.device).type, dtype=torch.bfloat16):
            return widened(network(*inputs))

    def travels(self, tensor: Tensor) -> bool:
        """Return True if a tensor is copied to the device: integers are looked up where the embedding tables are."""
        return self.on_gpu and (tensor.is_floating_point() or not self.mixed)

    def bring(self, tensor: Tensor) -> Tensor:
        """Return a tensor from main memory, such as a gathered one, on the device where the model takes it."""
        return tensor.to(self.device, non_blocking=True) if self.travels(tensor) else tensor

    def bring_all(self, tensors: Iterable[Tensor]) -> list[Tensor]:
        """Return several tensors as `bring` does."""
        return [self.bring(tensor) for tensor in tensors]


def widened(found: Tensor) -> Tensor:
    """Return a layer's output in single precision if it is in bfloat16; anything else unchanged."""
    return found.float() if isinstance(found, Tensor) and found.dtype == torch.bfloat16 else found


IN_MEMORY = Placement()
"""The placement of everything in main memory."""


def _send_rows(device: str, _table: nn.Module, _ids: Any, rows: Tensor) -> Tensor:
    return rows.to(device)
