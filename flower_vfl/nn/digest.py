"""A digest of weights: two runs with equal digests have equal weights, bit for bit."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor, nn


def weights_digest(module: nn.Module) -> str:
    """Return the SHA-256 over names, types, shapes and bytes of a module's parameters and buffers, sorted by name."""
    return state_digest(module.state_dict())


def state_digest(state: Mapping[str, Tensor]) -> str:
    """Return `weights_digest` of a module with these parameters and buffers."""
    digest = hashlib.sha256()
    for name, tensor in sorted(state.items()):
        flat = tensor.detach().to("cpu").contiguous().reshape(-1)
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(flat.view(torch.uint8).numpy().data if flat.numel() else b"")
    return digest.hexdigest()
