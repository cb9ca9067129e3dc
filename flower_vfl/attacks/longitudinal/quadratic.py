"""The likelihood ratio of a Gaussian for each class, fitted on a few known rows: it uses variances and means."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from flower_vfl.attacks.longitudinal.learned import History, LearnedAttack
from flower_vfl.attacks.readers import TensorReader, quadratic, standardising
from flower_vfl.errors import ConfigError
from flower_vfl.registry import is_number

if TYPE_CHECKING:
    from torch import Tensor


class RememberedQuadraticAttack(LearnedAttack):
    r"""An attack that scores each row by the likelihood ratio of two Gaussians, fitted on k known rows of each class.

    .. math:: r(x) = \log N(x; m_1, \Sigma_1) - \log N(x; m_0, \Sigma_0)

    No reader is better where each class is Gaussian, as Marvell's model and its certificate assume, and the fit is
    right. It separates classes that differ in their variance alone, which a linear reader cannot. With one known row of
    each class it chooses the nearer one. Blocks are decorrelated before (`standardising`).

    Parameters
    ----------
    k
        Number of labelled rows of each class that it knows, at least 1.
    shrinkage
        The share of the identity in each class's covariance, above 0 and up to 1, with an isotropic Gaussian at 1;
        None: the share that Ledoit and Wolf estimate from the known rows, at least 1 / k.
    reads
        "all", for mean, last and difference; or one of these, or "epochs".

    References
    ----------
    Li et al., *Label Leakage and Protection in Two-party Split Learning*, ICLR 2022, section 4.2 (the model); Neyman
    and Pearson, 1933.
    """

    name: ClassVar[str] = "remembered_quadratic"

    def __init__(self, k: int = 16, shrinkage: float | None = None, reads: History = "all") -> None:
        super().__init__(k, reads)
        if shrinkage is not None and (not is_number(shrinkage) or not 0 < shrinkage <= 1):
            raise ConfigError(
                f"remembered_quadratic: shrinkage is {shrinkage!r}; give a number above 0 and up to 1, or leave it out "
                "for the share that is estimated from the known rows"
            )
        self.shrinkage = shrinkage

    @property
    def params(self) -> dict[str, Any]:
        """The parameters of every learned reader, and the share of the identity."""
        return {**super().params, "shrinkage": self.shrinkage}

    def fit(self, x: Tensor, positive: Tensor) -> TensorReader:
        """Return the likelihood ratio of the classes' Gaussians."""
        standard = standardising(x)
        read = quadratic(standard(x), positive.long(), 2, shrinkage=self.shrinkage)
        return lambda rows: read(standard(rows))
