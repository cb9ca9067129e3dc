"""The configuration of a run: its keys (`schema`), reading and writing it (`run`), and values as text (`parsing`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flower_vfl.lazy import lazy_names

if TYPE_CHECKING:
    from flower_vfl.config.run import (
        FITTED,
        Config,
        build_config,
        canonical_key,
        explain,
        from_run_config,
        leaf_paths,
        load_config,
        of_this_host,
        preset_names,
        preset_text,
        read_source,
        sweep_names,
        to_run_config,
        to_toml,
    )

__all__ = [
    "FITTED",
    "Config",
    "build_config",
    "canonical_key",
    "explain",
    "from_run_config",
    "leaf_paths",
    "load_config",
    "of_this_host",
    "preset_names",
    "preset_text",
    "read_source",
    "sweep_names",
    "to_run_config",
    "to_toml",
]

__getattr__, __dir__ = lazy_names(__name__, dict.fromkeys(__all__, "flower_vfl.config.run"))
