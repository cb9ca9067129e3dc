"""(i) A step with a regulariser of the embedding against the same step without, and against the term by plain autograd.

Potential energy and distance correlation; census preset with a cut of 128 numbers, batches of 1,024, attacks off, one
torch thread. Memory is the peak of torch's allocator while the term of such a batch and its gradient are computed.
Targets: at most 1.8 times a plain step, and at most 3 B^2 floats for a batch of B rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from harness import Gate, arguments, compare, report
from lanes import preset, split
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from flower_vfl.config import Config
from flower_vfl.strategies import DEFENSES, DistanceCorrelation, PotentialEnergy
from flower_vfl.strategies.embeddings.distance_correlation import distance_correlation
from flower_vfl.strategies.embeddings.potential_energy import potential_energy

TIME, MEMORY = 1.8, 3.0
BATCH, WIDTH = 1024, 128


def plain_energy(z: Tensor, y: Tensor) -> Tensor:
    """Return the mean potential energy by its formula; clamped, or equal rows would give NaN."""
    directions = torch.nn.functional.normalize(z)
    angles = (directions @ directions.T).clamp(-1 + 1e-6, 1 - 1e-6).acos()
    same = (y[:, None] == y) & ~torch.eye(len(y), dtype=torch.bool)
    return (same / angles).sum() / same.sum()


def plain_correlation(z: Tensor, y: Tensor) -> Tensor:
    """Return the distance correlation by its formula."""
    a, b = (_centred(distances) for distances in (torch.cdist(z, z), (y[:, None] != y).to(z.dtype)))
    return ((a * b).mean() / ((a * a).mean() * (b * b).mean()).sqrt()).sqrt()


def _centred(distances: Tensor) -> Tensor:
    means = distances.mean(dim=0)
    return distances - means - means[:, None] + means.mean()


class PlainEnergy(PotentialEnergy):
    """The same defense by plain autograd."""

    def term(self, z: Tensor, labels: Tensor) -> Tensor:
        """Return the mean potential energy."""
        return plain_energy(z, labels)


class PlainCorrelation(DistanceCorrelation):
    """The same defense by plain autograd."""

    def term(self, z: Tensor, labels: Tensor) -> Tensor:
        """Return the distance correlation."""
        return plain_correlation(z, labels)


def split_by_autograd(gate: Gate, config: Config) -> None:
    """Train with the plain terms."""
    DEFENSES.update({cls.name: cls for cls in (PlainEnergy, PlainCorrelation)})
    split(gate, config)


def times_of(names: Sequence[str], quick: bool) -> dict[str, dict[str, Any]]:
    """Measure all regularisers in one round of turns, so that they share the plain step that each is paired with."""
    plain = preset(quick, attack={"names": []}, model={"cut": WIDTH})
    lanes: list[tuple[Any, ...]] = [("plain", split, plain)]
    for name in names:
        defended = plain.model_copy(update={"defenses": [{"name": name}]})
        lanes += [(name, split, defended), (f"{name} by autograd", split_by_autograd, defended)]
    size = {"starts": 1, "blocks": 2, "steps": 1} if quick else {"starts": 4, "blocks": 12, "steps": 12}
    step, *others = compare(lanes, **size).times
    return {
        name: {
            "ratio": ours.over(step).describe(),
            "ratio_of_cpu": ours.cpu_over(step).describe(),
            "autograd_ratio": theirs.over(step).describe(),
            "plain_ms": step.milliseconds,
            "ours_ms": ours.milliseconds,
            "autograd_ms": theirs.milliseconds,
        }
        for name, ours, theirs in zip(names, others[::2], others[1::2], strict=True)
    }


def memory_of(term: Callable[[Tensor, Tensor], Tensor]) -> float:
    """Return the largest number of floats held at a time, over B^2."""
    source = torch.Generator().manual_seed(0)
    z = torch.randn(BATCH, WIDTH, generator=source, requires_grad=True)
    y = (torch.rand(BATCH, generator=source) < 0.1).long()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        term(z, y).backward()
    events = [event for event in profiled.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return round(most / z.element_size() / BATCH**2, 3)


def main() -> None:
    """Measure and report."""
    quick = arguments(__doc__).quick
    terms = {
        "potential_energy": (potential_energy, plain_energy),
        "distance_correlation": (distance_correlation, plain_correlation),
    }
    found = times_of(list(terms), quick)
    for name, (ours, theirs) in terms.items():
        found[name] |= {"floats_over_b2": memory_of(ours), "autograd_floats_over_b2": memory_of(theirs)}
    met = all(one["ratio"]["median"] <= TIME and one["floats_over_b2"] <= MEMORY for one in found.values())
    report("regularisers", target=f"<= {TIME} x a plain step, <= {MEMORY:g} B^2 floats", met=met, quick=quick, **found)


if __name__ == "__main__":
    main()
