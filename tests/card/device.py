"""A stand-in for a GPU: a device that computes in main memory and counts every wait for it.

It refuses what a GPU refuses: operations on tensors of two devices, and numpy's view of one of its tensors. It also
refuses copies to main memory that are not waited for: on a GPU they could be read before they are complete. It counts
the operations for which the processor would wait, by the function of the package that asks for them. It does not model
the times and the memory of a GPU.

It uses PyTorch's extension point for devices (`PrivateUse1`), implemented in Python: dispatcher, autograd, optimizers
and `torch.func` treat it as they treat "cuda". A process that has registered it keeps it, but only within `card` can
tensors be put on it.
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
"""Operations whose result, or its size, the processor needs before it can continue."""

DECOMPOSES = {"linalg_cholesky_ex", "_linalg_eigh", "_linalg_svd", "_linalg_solve_ex", "linalg_qr"}
"""Operations of CUDA's libraries for which the processor waits."""

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
"""Operations without work for the device, in addition to all views."""

MIXES_DEVICES = {"copy_", "_to_copy", "index", "index_put_", "_index_put_impl_"}
"""Operations for which a GPU accepts tensors of two devices."""

_STORAGE_BYTES = 2**50
"""Storage size in bytes that a tensor reports, so that it can grow; none of it is allocated."""


class Waits(Counter[str]):
    """Number of waits of the processor for the device, by the function that caused them."""

    launches = 0
    """Number of operations with work for the device."""


_counters: list[Waits] = []


@contextlib.contextmanager
def counting() -> Iterator[Waits]:
    """Count the waits and the operations within the context."""
    waits = Waits()
    _counters.append(waits)
    try:
        yield waits
    finally:
        _counters.remove(waits)


class DeviceTensor(torch.Tensor):
    """A tensor of the device; `inner` is the tensor in main memory that holds its values."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> DeviceTensor:
        """Wrap a tensor in main memory."""
        properties: dict[str, Any] = {"dtype": inner.dtype, "device": f"{NAME}:0"}
        if inner.is_sparse:
            properties["layout"] = torch.sparse_coo
        else:
            properties |= {
                "strides": inner.stride(),
                "storage_offset": inner.storage_offset(),
                "storage_size": _STORAGE_BYTES,
            }
        return torch.Tensor._make_wrapper_subclass(cls, inner.size(), **properties)

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    def tolist(self) -> Any:
        """Return the values, which is a wait."""
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Compute an operation in main memory."""
        return _compute(func, args, kwargs or {})


def _compute(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    name = func.overloadpacket.__name__
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    ours = [tensor for tensor in tensors if isinstance(tensor, DeviceTensor)]
    # Scalars of main memory may be mixed in.
    if ours and name not in MIXES_DEVICES and any(t.dim() for t in tensors if not isinstance(t, DeviceTensor)):
        raise RuntimeError(f"{func}: expected all tensors on one device, found at least two, {NAME}:0 and cpu")
    device = kwargs.get("device")
    on_device = bool(ours) if device is None else torch.device(device).type == NAME
    if name == "copy_":
        on_device = isinstance(args[0], DeviceTensor)
    busy = (bool(ours) or on_device) and not func.is_view and name not in NOTHING_TO_DO
    _count(name, args, kwargs, ours=bool(ours), on_device=on_device, busy=busy)
    plain = kwargs if device is None else {**kwargs, "device": "cpu"}
    result = func(*tree_map(_inner, args), **tree_map(_inner, plain))
    for tensor in ours:
        if not tensor.is_sparse and (tensor.shape, tensor.stride()) != (tensor.inner.shape, tensor.inner.stride()):
            _reshape(tensor)
    if not on_device:
        return args[0] if name == "copy_" else result
    wrappers = {id(tensor.inner): tensor for tensor in ours}  # operations in place return their argument
    return tree_map(lambda leaf: wrappers[id(leaf)] if id(leaf) in wrappers else _wrapped(leaf), result)


def _inner(leaf: Any) -> Any:
    return leaf.inner if isinstance(leaf, DeviceTensor) else leaf


def _wrapped(leaf: Any) -> Any:
    return DeviceTensor(leaf) if isinstance(leaf, torch.Tensor) else leaf


def _reshape(tensor: DeviceTensor) -> None:
    """Give a tensor the shape of its inner one, which was changed in place."""
    change, inner = torch.ops.aten.as_strided_.default, tensor.inner
    key = torch._C.DispatchKey.CompositeExplicitAutogradNonFunctional
    with torch._C._DisableTorchDispatch():
        change._op_dk(key, tensor, inner.size(), inner.stride(), inner.storage_offset())


def _count(name: str, args: Any, kwargs: dict[str, Any], *, ours: bool, on_device: bool, busy: bool) -> None:
    """Count an operation, and the wait if the processor waits for it."""
    waits = ours and name in READS | DECOMPOSES
    if name in ("copy_", "_to_copy"):
        crossing = (
            isinstance(args[0], DeviceTensor) != isinstance(args[1], DeviceTensor)
            if name == "copy_"
            else ours != on_device
        )
        non_blocking = kwargs.get("non_blocking") or args[2:] == (True,)
        if crossing and non_blocking and not on_device:
            raise RuntimeError(f"{name}: a copy from {NAME}:0 to cpu must be waited for")
        waits = crossing and not non_blocking
    elif name in ("index", "index_put_", "_index_put_impl_"):
        waits = any(one.dtype == torch.bool or not isinstance(one, DeviceTensor) for one in args[1] if one is not None)
    elif name == "repeat_interleave":
        waits = kwargs.get("output_size") is None
    for counter in _counters:
        counter.launches += busy
        counter.update([_caller()] if waits else [])


def _caller() -> str:
    """Return the name of the innermost function of the package on the stack."""
    frame = sys._getframe(2)
    while frame is not None and not frame.f_globals["__name__"].startswith("flower_vfl."):
        frame = frame.f_back
    if frame is None:
        return "elsewhere"
    return f"{frame.f_globals['__name__'].rsplit('.', 1)[1]}.{frame.f_code.co_qualname}"


@cache
def _register() -> torch.library.Library:
    """Register the device in PyTorch, once a process; its kernels live as long as the returned library."""
    backend_registration._setup_privateuseone_for_python_backend(NAME, backend_module=_Module())
    library = torch.library.Library("_", "IMPL")
    library.fallback(lambda func, *args, **kwargs: _compute(func, args, kwargs), "PrivateUse1")
    return library


class _Generator(torch.Generator):
    """A generator that draws in main memory and reports the stand-in as its device."""

    def __new__(cls, device: Any = "cpu") -> _Generator:
        """Create a generator for a device."""
        made = super().__new__(cls, device="cpu")
        made.reported = torch.device(NAME, 0) if torch.device(device).type == NAME else torch.device(device)
        return made

    @property
    def device(self) -> torch.device:
        """The device that it reports."""
        return self.reported


class _Stream:
    """A stream whose operations are complete when they are queued."""

    def __init__(self, device: Any = None) -> None:
        self.device = torch.device(device or NAME)

    def record_event(self) -> _Stream:
        """Return an event, which is the stream itself."""
        return self

    def wait_event(self, event: _Stream) -> None:
        """Return at once: everything is complete."""


class _Module:
    """The module that `torch.get_device_module` returns for the stand-in."""

    Stream = _Stream

    def is_initialized(self) -> bool:
        """Return True: the device can be used."""
        return True

    is_available = is_initialized

    def current_device(self) -> int:
        """Return the number of the only device."""
        return 0

    def device_count(self) -> int:
        """Return the number of devices, one."""
        return 1

    def _is_in_bad_fork(self) -> bool:
        return False

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        """Return the state of the device's global generator, which is never used."""
        return torch.zeros(1, dtype=torch.uint8)

    def set_rng_state(self, state: torch.Tensor, device: Any = None) -> None:
        """Restore such a state: nothing to do."""

    def manual_seed_all(self, seed: int) -> None:
        """Seed the global generator: nothing to do."""

    def current_stream(self, device: Any = None) -> _Stream:
        """Return the stream in use."""
        return _Stream(device)

    @contextlib.contextmanager
    def stream(self, stream: _Stream) -> Iterator[None]:
        """Use a stream."""
        yield


@contextlib.contextmanager
def card() -> Iterator[str]:
    """Enable the stand-in and yield its name in a configuration; PyTorch's calls of a driver are replaced within."""
    _register()
    replaced = (
        (torch, "Generator", _Generator),
        (torch, "tensor", _made_in_main_memory(torch.tensor)),
        (torch, "as_tensor", _made_in_main_memory(torch.as_tensor)),
        (torch.Tensor, "pin_memory", lambda tensor: tensor),
        (run, "_DEVICES", re.compile(f"cpu|{NAME}")),
        (torch.Tensor, "record_stream", lambda _tensor, _stream: None),
    )
    # In one thread: autograd counts the devices of a process at its first backward pass, which may be over.
    with contextlib.ExitStack() as stack, torch.autograd.set_multithreading_enabled(False):
        for owner, name, made in replaced:
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, made)
        yield NAME


def _made_in_main_memory(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return a factory that makes a tensor in main memory and then copies it: PyTorch bypasses the dispatcher."""

    def made(values: Any, *, device: Any = None, **more: Any) -> torch.Tensor:
        found = make(values, **more)
        return found if device is None else found.to(device)

    return made
