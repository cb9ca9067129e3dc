"""Joint attacks: a party's gradients together with its own columns and its own embeddings."""

from flower_vfl.attacks.joint.base import JointAttack, JointScores, JointView, OwnRows
from flower_vfl.attacks.joint.reader import JointReaderAttack
from flower_vfl.attacks.joint.regression import JointRegressionAttack

__all__ = [
    "JointAttack",
    "JointReaderAttack",
    "JointRegressionAttack",
    "JointScores",
    "JointView",
    "OwnRows",
]
