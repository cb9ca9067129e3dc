"""Several networks that share most of their weights and whose predictions are averaged (TabM), cut in two.

Each member m has its own part of the embedding at the cut: unit u of member m is column u M + m, so that embeddings of
several parties can be joined side by side, or added, before the top model takes them apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from flower_vfl.errors import ConfigError


class MemberLinear(nn.Module):
    r"""A linear layer of M members with one matrix W: :math:`s_m \circ W (r_m \circ x_m) + b_m`.

    Parameters
    ----------
    in_width, out_width : int
        Widths of one member.
    members : int
        Number of members M.

    References
    ----------
    Wen et al., *BatchEnsemble*, ICLR 2020, section 3; initial values as in Gorishniy et al., *TabM: Advancing Tabular
    Deep Learning with Parameter-Efficient Ensembling*, ICLR 2025 (arXiv 2410.24210), section 3.
    """

    def __init__(self, in_width: int, out_width: int, members: int) -> None:
        super().__init__()
        self.shared = nn.Linear(in_width, out_width, bias=False)
        self.scale_in = nn.Parameter(torch.ones(members, in_width))
        self.scale_out = nn.Parameter(torch.ones(members, out_width))
        self.bias = nn.Parameter(_uniform((members, out_width), in_width))

    @torch.no_grad()
    def draw_signs(self) -> None:
        """Give each member random signs :math:`r_m`: at the first layer of a network they make members differ."""
        self.scale_in.copy_(2.0 * torch.randint(0, 2, self.scale_in.shape) - 1.0)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, I), the same for all members, or (B, M, I) to (B, M, O)."""
        own = x[:, None] if x.dim() == 2 else x
        found: Tensor = self.shared(own * self.scale_in) * self.scale_out + self.bias
        return found


class EnsembleTop(nn.Module):
    """The top models of M members.

    Parameters
    ----------
    in_width : int
        Width of the joined embedding, flattened; M times that of a member.
    members : int
        Number of members M.
    hidden : sequence of int
        Widths of a member's hidden layers; none gives one linear layer.
    classes : int
        2 gives one logit a member, more give one a class.

    Raises
    ------
    ConfigError
        When the width is no multiple of the number of members.
    """

    def __init__(self, in_width: int, members: int, *, hidden: Sequence[int] = (64,), classes: int = 2) -> None:
        super().__init__()
        check_shared_out(in_width, members)
        self.count, self.classes = members, classes
        self.hidden = perceptron(in_width // members, hidden, linear=partial(MemberLinear, members=members))
        width, outputs = (hidden[-1] if hidden else in_width // members), 1 if classes == 2 else classes
        self.weight = nn.Parameter(_uniform((members, width, outputs), width))
        self.bias = nn.Parameter(_uniform((members, outputs), width))

    def members(self, z: Tensor) -> Tensor:
        """Return each member's logits for joined embeddings (B, ...): (B, M) for two classes, (B, M, C) for more."""
        flat = z.flatten(1)
        own = self.hidden(flat.reshape(len(flat), flat.shape[1] // self.count, self.count).transpose(1, 2))
        logits = torch.einsum("bmi,mio->bmo", own, self.weight) + self.bias
        return logits.squeeze(2) if self.classes == 2 else logits

    def forward(self, z: Tensor) -> Tensor:
        """Map joined embeddings (B, ...) to the logits of the mean probabilities, (B,) or (B, C)."""
        return mixture(self.members(z))


def mixture(logits: Tensor) -> Tensor:
    """Return the logits of the mean of members' probabilities: (B,) of class 1 from (B, M), or (B, C) from (B, M, C).

    Examples
    --------
    >>> float(mixture(torch.tensor([[0.25, 0.75]]).logit()).sigmoid())
    0.5
    """
    if logits.dim() == 3:
        return torch.log_softmax(logits, dim=2).logsumexp(dim=1)
    sides = nn.functional.logsigmoid(torch.stack([logits, -logits])).logsumexp(dim=2)
    return sides[0] - sides[1]


def perceptron(
    width: int, widths: Sequence[int], dropout: float = 0.0, *, linear: Callable[[int, int], nn.Module] = nn.Linear
) -> nn.Sequential:
    """Return linear layers with a ReLU after each, and dropout after all but the last; `linear` makes a layer."""
    parts: list[nn.Module] = []
    for position, out in enumerate(widths):
        parts += [linear(width, out), nn.ReLU()]
        if dropout and position < len(widths) - 1:
            parts.append(nn.Dropout(dropout))
        width = out
    return nn.Sequential(*parts)


def check_shared_out(width: int, members: int) -> None:
    """Refuse an embedding whose width is no multiple of the number of members."""
    if width % members:
        raise ConfigError(
            f"an embedding of {width} numbers cannot be shared out among {members} members of an ensemble: set "
            f"model.cut to a multiple of model.ensemble = {members}"
        )


def _uniform(shape: tuple[int, ...], inputs: int) -> Tensor:
    """Return initial values of a shape, as in a `torch.nn.Linear` of this number of inputs."""
    limit = inputs**-0.5
    return torch.empty(shape).uniform_(-limit, limit)
