"""Data, models, threads and precision of a configuration; importing this loads no torch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import cache
from threading import Lock
from typing import TYPE_CHECKING

from flower_vfl.config import Config
from flower_vfl.config.parsing import feature_party_name
from flower_vfl.data.store.dataset import FeatureSpec
from flower_vfl.data.store.memory import VerticalData
from flower_vfl.errors import ConfigError

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController
    from torch import nn

BottomFactory = Callable[[FeatureSpec, Config], "nn.Module"]
"""Function that makes a party's bottom model for the shape of its features, a new one in each call."""

TopFactory = Callable[[tuple[int, ...], int, Config], "nn.Module"]
"""Function that makes the top model for the shape of one row of the fused embedding and the number of classes, a new
one in each call."""

DataFactory = Callable[[Config], VerticalData]
"""Function that opens the data that a configuration names; a party then loads only its own part."""


def open_data(config: Config) -> VerticalData:
    """Open the data set that the configuration names, preparing it on first use."""
    from flower_vfl.data.sources.catalog import load

    return load(config.data.name, path=config.data.path, options=config.data.options)


def default_bottom(spec: FeatureSpec, config: Config) -> nn.Module:
    """Make the bottom model of the network that the configuration names."""
    from flower_vfl.nn.networks import network_of

    return network_of(config.model).bottom(spec, config.model)


def default_own(spec: FeatureSpec, classes: int, config: Config) -> nn.Module:
    """Make the label party's model of its own columns, of the network that the configuration names."""
    from flower_vfl.nn.networks import network_of

    return network_of(config.model).own(spec, classes, config.model)


def default_top(shape: tuple[int, ...], classes: int, config: Config) -> nn.Module:
    """Make the top model of the network that the configuration names."""
    from flower_vfl.nn.networks import network_of

    return network_of(config.model).top(shape, classes, config.model)


def parties_here(config: Config, dataset: VerticalData) -> tuple[str, ...]:
    """Return the feature parties of a run with all its data on this host.

    Raises
    ------
    ConfigError
        When the configuration names parties that the data does not have, or as `party_names`.
    """
    names = party_names(config, dataset)
    for name in names:
        if name not in dataset.parties:
            raise ConfigError(f"there is no party {name!r} in {dataset.name}; it has {', '.join(dataset.parties)}")
    return names


def party_names(config: Config, dataset: VerticalData) -> tuple[str, ...]:
    """Return the feature parties of a run: those of the configuration, or else those that the data names.

    Raises
    ------
    ConfigError
        When there are none or too many, one has an invalid name, or settings are for a party that takes no part.
    """
    names = tuple(config.parties.features) or tuple(name for name in dataset.parties if name != dataset.label_party)
    for key, named in config.parties.named.items():
        for name in named:
            if name not in names:
                raise ConfigError(f"{key} names {name!r}, which is no feature party of this run: {', '.join(names)}")
    if not 1 <= len(names) <= 32:
        raise ConfigError(
            f"a run has 1 to 32 feature parties, given {len(names)}: neither parties.features nor the data names others"
        )
    try:
        return tuple(map(feature_party_name, names))
    except ValueError as error:
        raise ConfigError(f"{error}; name it otherwise in {dataset.name}") from None


@cache
def _blas_controller() -> ThreadpoolController:
    """Return the controller of the threads of NumPy's and SciPy's BLAS; finding it takes milliseconds."""
    import scipy.linalg  # noqa: F401 # it loads a BLAS library of its own
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController().select(user_api="blas")


class _Threads:
    """The number of threads of a process. Parties in one process set it while they compute, and finish in any order."""

    def __init__(self) -> None:
        self._lock, self._users, self._before, self._limit = Lock(), 0, 0, contextlib.ExitStack()

    @contextlib.contextmanager
    def limited(self, count: int) -> Iterator[None]:
        """Compute with `count` threads of torch, NumPy and SciPy, 0 for their own numbers; restore the earlier ones.

        PyTorch's number holds for the thread that sets it, and for threads that start from then on. So each user
        restores the number of its own thread, and the last one to finish the number from before the first one.
        """
        import torch

        own = torch.get_num_threads()
        with self._lock:
            first = not self._users
            if first:
                self._before = own
                # By default OpenBLAS has a thread for each processor, and they spin while they wait for each other:
                # slow where other work has the processors.
                self._limit.enter_context(_blas_controller().limit(limits=count or None))
            self._users += 1
        if count:
            torch.set_num_threads(count)
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                torch.set_num_threads(own if self._users else self._before)
                if first or not self._users:
                    self._limit.close()


_THREADS = _Threads()


@contextlib.contextmanager
def computing(config: Config) -> Iterator[None]:
    """Compute with a configuration's threads and precision; the earlier settings are restored at the end.

    In "float32" a GPU computes convolutions in full single precision too, which is not PyTorch's default.
    """
    import torch

    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    tf32 = config.precision == "tf32"
    with _THREADS.limited(config.threads):
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        torch.backends.cudnn.allow_tf32 = tf32
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before[0])
            torch.backends.cudnn.allow_tf32 = before[1]


def check_device(config: Config) -> None:
    """Refuse a device that this host does not have."""
    if not config.device.startswith("cuda"):
        return
    import torch

    if not torch.cuda.is_available():
        raise ConfigError(f"device is {config.device!r}, but torch finds no CUDA device on this host")
