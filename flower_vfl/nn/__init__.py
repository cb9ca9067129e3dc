"""Bottom and top models, the fusion of several parties' embeddings, and the optimizer of one party."""

from flower_vfl.nn.digest import weights_digest
from flower_vfl.nn.dropout import Dropout, bind_dropout
from flower_vfl.nn.fusion import fuse, fused_shape
from flower_vfl.nn.images import ConvBottom, ConvTop
from flower_vfl.nn.initialise import new_model, seeded_initialisation
from flower_vfl.nn.layers import watched_layers
from flower_vfl.nn.network import Network
from flower_vfl.nn.networks import NETWORKS, network_of
from flower_vfl.nn.optim import Optimizers, OwnOptimizer
from flower_vfl.nn.placement import Placement
from flower_vfl.nn.staged import Stage, StagedNetwork
from flower_vfl.nn.tabular import TabularBottom, Top
from flower_vfl.nn.text import TextBottom
from flower_vfl.nn.wide_deep import Wide

__all__ = [
    "NETWORKS",
    "ConvBottom",
    "ConvTop",
    "Dropout",
    "Network",
    "Optimizers",
    "OwnOptimizer",
    "Placement",
    "Stage",
    "StagedNetwork",
    "TabularBottom",
    "TextBottom",
    "Top",
    "Wide",
    "bind_dropout",
    "fuse",
    "fused_shape",
    "network_of",
    "new_model",
    "seeded_initialisation",
    "watched_layers",
    "weights_digest",
]
