"""A stand-in for a card: a device on which all is computed in main memory, and every wait for it is counted.

What a real card refuses is refused: an operation on tensors of two devices, and numpy's view of a tensor that lies
there. So is a copy to main memory that is not waited for: on a real card it would be read before it has come. What
makes the processor wait for a real card is counted, with the function of the package that asked for it. Of times and
of the memory of a card it says nothing.

It is PyTorch's own extension point for devices (`PrivateUse1`), implemented in Python: dispatcher, autograd, optimizers
and `torch.func` treat it as they treat "cuda". Once a process has it, it stays; tensors come there within `card` only.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
import torch
from torch.utils import backend_registration
from torch.utils._pytree import tree_leaves, tree_map

from flower_vfl.config import run

if not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"):
    pytest.skip("this PyTorch has no devices that are made in Python", allow_module_level=True)

NAME = "card"

READS = {"_local_scalar_dense", "equal", "nonzero", "is_nonzero", "masked_select", "_unique2", "unique_dim", "bincount"}
"""Operations whose result, or its size, the processor has to know before it goes on."""

DECOMPOSES = {"linalg_cholesky_ex", "_linalg_eigh", "_linalg_svd", "_linalg_solve_ex", "linalg_qr"}
"""Operations that CUDA's libraries do while the processor waits."""

NOTHING_TO_DO = {
    "detach",
    "empty",
    "empty_strided",
    "empty_like",
    "new_empty",
    "new_empty_strided",
    "resize_",
    "_unsafe_view",
    "lift_fresh",
}
"""Operations that, beside all views, only say where something is."""

MIXES = {"copy_", "_to_copy", "index", "index_put_", "_index_put_impl_"}
"""Operations that a real card takes tensors of two devices for."""

_ROOM = 2**50
"""Bytes that a tensor says that it has room for, so that it can grow; nothing is stored there."""


class Waits(Counter[str]):
    """How often the processor waited for the card, by the function that asked."""

    launches = 0
    """Operations that a card has something to do for."""


_watching: list[Waits] = []


@contextlib.contextmanager
def counting() -> Iterator[Waits]:
    """Count the waits of what is done within."""
    waits = Waits()
    _watching.append(waits)
    try:
        yield waits
    finally:
        _watching.remove(waits)


class OnCard(torch.Tensor):
    """A tensor of the card; `inner` is where it really is."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> OnCard:
        """Wrap a tensor in main memory."""
        facts: dict[str, Any] = {"dtype": inner.dtype, "device": f"{NAME}:0"}
        if inner.is_sparse:
            facts["layout"] = torch.sparse_coo
        else:
            facts |= {"strides": inner.stride(), "storage_offset": inner.storage_offset(), "storage_size": _ROOM}
        return torch.Tensor._make_wrapper_subclass(cls, inner.size(), **facts)

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    def tolist(self) -> Any:
        """Return the values, which are waited for."""
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Compute an operation in main memory."""
        return _compute(func, args, kwargs or {})


def _compute(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    name = func.overloadpacket.__name__
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    ours = [tensor for tensor in tensors if isinstance(tensor, OnCard)]
    if ours and name not in MIXES and any(t.dim() for t in tensors if not isinstance(t, OnCard)):  # numbers may be
        raise RuntimeError(f"{func}: expected all tensors on one device, found at least two, {NAME}:0 and cpu")
    device = kwargs.get("device")
    there = bool(ours) if device is None else torch.device(device).type == NAME
    if name == "copy_":
        there = isinstance(args[0], OnCard)
    busy = (bool(ours) or there) and not func.is_view and name not in NOTHING_TO_DO
    _note(name, args, kwargs, ours=bool(ours), there=there, busy=busy)
    plain = kwargs if device is None else {**kwargs, "device": "cpu"}
    result = func(*tree_map(_inner, args), **tree_map(_inner, plain))
    for tensor in ours:
        if not tensor.is_sparse and (tensor.shape, tensor.stride()) != (tensor.inner.shape, tensor.inner.stride()):
            _reshape(tensor)
    if not there:
        return args[0] if name == "copy_" else result
    known = {id(tensor.inner): tensor for tensor in ours}  # what was changed in place comes back as it was given
    return tree_map(lambda leaf: known[id(leaf)] if id(leaf) in known else _wrapped(leaf), result)


def _inner(leaf: Any) -> Any:
    return leaf.inner if isinstance(leaf, OnCard) else leaf


def _wrapped(leaf: Any) -> Any:
    return OnCard(leaf) if isinstance(leaf, torch.Tensor) else leaf


def _reshape(tensor: OnCard) -> None:
    """Let a tensor say of itself what its inner one says after its shape was changed in place."""
    change, inner = torch.ops.aten.as_strided_.default, tensor.inner
    key = torch._C.DispatchKey.CompositeExplicitAutogradNonFunctional
    with torch._C._DisableTorchDispatch():
        change._op_dk(key, tensor, inner.size(), inner.stride(), inner.storage_offset())


def _note(name: str, args: Any, kwargs: dict[str, Any], *, ours: bool, there: bool, busy: bool) -> None:
    """Count an operation, and whether the processor waits for it."""
    waits = ours and name in READS | DECOMPOSES
    if name in ("copy_", "_to_copy"):
        crossing = isinstance(args[0], OnCard) != isinstance(args[1], OnCard) if name == "copy_" else ours != there
        goes_on = kwargs.get("non_blocking") or args[2:] == (True,)
        if crossing and goes_on and not there:
            raise RuntimeError(f"{name}: what comes from {NAME}:0 to cpu must be waited for")
        waits = crossing and not goes_on
    elif name in ("index", "index_put_", "_index_put_impl_"):
        waits = any(one.dtype == torch.bool or not isinstance(one, OnCard) for one in args[1] if one is not None)
    elif name == "repeat_interleave":
        waits = kwargs.get("output_size") is None
    for watched in _watching:
        watched.launches += busy
        watched.update([_asking()] if waits else [])


def _asking() -> str:
    """Return which function of the package asked for what is done."""
    frame = sys._getframe(2)
    while frame is not None and not frame.f_globals["__name__"].startswith("flower_vfl."):
        frame = frame.f_back
    if frame is None:
        return "elsewhere"
    return f"{frame.f_globals['__name__'].rsplit('.', 1)[1]}.{frame.f_code.co_qualname}"


@cache
def _register() -> torch.library.Library:
    """Make the device known to PyTorch, once a process; its kernels stay as long as what is returned."""
    backend_registration._setup_privateuseone_for_python_backend(NAME, backend_module=_Module())
    library = torch.library.Library("_", "IMPL")
    library.fallback(lambda func, *args, **kwargs: _compute(func, args, kwargs), "PrivateUse1")
    return library


class _Generator(torch.Generator):
    """A generator that draws in main memory and says that it is the card's."""

    def __new__(cls, device: Any = "cpu") -> _Generator:
        """Make one for a device."""
        made = super().__new__(cls, device="cpu")
        made.place = torch.device(NAME, 0) if torch.device(device).type == NAME else torch.device(device)
        return made

    @property
    def device(self) -> torch.device:
        """Where it says that it is."""
        return self.place


class _Stream:
    """A stream on which all is done when it is asked for."""

    def __init__(self, device: Any = None) -> None:
        self.device = torch.device(device or NAME)

    def record_event(self) -> _Stream:
        """Return what can be waited for."""
        return self

    def wait_event(self, event: _Stream) -> None:
        """Wait for nothing: all is done."""


class _Module:
    """What `torch.get_device_module` gives for the card."""

    Stream = _Stream

    def is_initialized(self) -> bool:
        """Say that it can be used."""
        return True

    is_available = is_initialized

    def current_device(self) -> int:
        """Return the number of the only card."""
        return 0

    def device_count(self) -> int:
        """Return that there is one."""
        return 1

    def _is_in_bad_fork(self) -> bool:
        return False

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        """Return the state of the card's global generator, from which nobody draws."""
        return torch.zeros(1, dtype=torch.uint8)

    def set_rng_state(self, state: torch.Tensor, device: Any = None) -> None:
        """Go back to such a state."""

    def manual_seed_all(self, seed: int) -> None:
        """Seed it."""

    def current_stream(self, device: Any = None) -> _Stream:
        """Return the stream in use."""
        return _Stream(device)

    @contextlib.contextmanager
    def stream(self, stream: _Stream) -> Iterator[None]:
        """Use a stream."""
        yield


@contextlib.contextmanager
def card() -> Iterator[str]:
    """Have a card, and give its name as a configuration says it; what PyTorch asks of a driver is replaced within."""
    _register()
    replaced = (
        (torch, "Generator", _Generator),
        (torch, "tensor", _sent(torch.tensor)),
        (torch, "as_tensor", _sent(torch.as_tensor)),
        (torch.Tensor, "pin_memory", lambda tensor: tensor),
        (run, "_DEVICES", re.compile(f"cpu|{NAME}")),
        (torch.Tensor, "record_stream", lambda _tensor, _stream: None),
    )
    # In one thread: autograd counts the devices of a process when it first goes back, and that may be long ago.
    with contextlib.ExitStack() as stack, torch.autograd.set_multithreading_enabled(False):
        for owner, name, made in replaced:
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, made)
        yield NAME


def _sent(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Make a tensor in main memory before it is sent: PyTorch copies the values below the dispatcher."""

    def made(values: Any, *, device: Any = None, **more: Any) -> torch.Tensor:
        found = make(values, **more)
        return found if device is None else found.to(device)

    return made
