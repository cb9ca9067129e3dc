"""The layers of a bottom model at which the leak is measured, besides the cut."""

from __future__ import annotations

from torch import nn

from flower_vfl.errors import ConfigError

_EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
_SKIPPED = (
    nn.modules.batchnorm._NormBase,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.LocalResponseNorm,
    nn.modules.dropout._DropoutNd,
    nn.Identity,
)


def watched_layers(bottom: nn.Module) -> dict[str, nn.Module]:
    """Return the modules with outputs that an attacker reads.

    "first" is the output of the first module with parameters, after its activation and before pooling; embeddings of
    categorical columns do not count, so that for tables it is the first linear layer (METHODS.md, section 1).

    A model may choose them itself, by a method `watched_layers()` that returns such a dictionary. Otherwise the modules
    are walked in the order in which they were registered, which for `torch.nn.Sequential` is the order of computation;
    an activation that is a function, or one module used in several places, is not detected, and the layer before it
    is used.

    Parameters
    ----------
    bottom : torch.nn.Module
        A party's bottom model.

    Returns
    -------
    dict of str to torch.nn.Module
        Empty when no module has parameters.

    Raises
    ------
    ConfigError
        When a model's own `watched_layers()` returns something else.
    """
    declared = getattr(bottom, "watched_layers", None)
    if callable(declared):
        return _checked(bottom, declared())
    leaves = [part for _, part in bottom.named_modules(remove_duplicate=False) if not any(part.children())]
    for position, part in enumerate(leaves):
        if any(True for _ in part.parameters()) and not isinstance(part, _EMBEDDINGS):
            return {"first": _activation_after(leaves, position)}
    return {}


def _activation_after(leaves: list[nn.Module], position: int) -> nn.Module:
    """Return the activation that follows the layer at `position`, or the layer itself."""
    for part in leaves[position + 1 :]:
        if isinstance(part, _SKIPPED):
            continue
        if type(part).__module__ == nn.ReLU.__module__ and not any(True for _ in part.parameters()):
            return part if leaves.count(part) == 1 else leaves[position]
        break
    return leaves[position]


def _checked(bottom: nn.Module, layers: object) -> dict[str, nn.Module]:
    parts = set(bottom.modules())
    if not isinstance(layers, dict) or any(
        not isinstance(name, str) or name == "cut" or layer not in parts for name, layer in layers.items()
    ):
        raise ConfigError(
            f"{type(bottom).__name__}.watched_layers() must return names and modules of the model itself, without "
            f"'cut', which is always watched; it returned {layers!r}"
        )
    return layers
