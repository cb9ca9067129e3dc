"""A step of each network by itself waits for the card for nothing but its loss."""

import pytest

from tests.card.counts import NETWORKS, whole
from tests.card.test_runs import images, paper
from tests.toys import mixed_data, text_data

ALL = {
    "tabular": (mixed_data, {}, ""),
    **NETWORKS,
    "fashion": (images(1, 28, 28), paper("fashion"), ""),
    "cifar10": (images(3, 32, 32), paper("resnet20"), ""),
    "mnist": (images(1, 28, 28), paper("mnist"), ""),
    "texts": (text_data, paper("textcnn", cut=12), ""),
}
PADDING = {"texts": 2}
"""PyTorch leaves what fills texts up out of a sparse gradient: it counts the rest, of words and of their gradients."""


@pytest.mark.parametrize("name", ALL)
def test_a_step_waits_for_its_loss_alone(name):
    assert whole(*ALL[name])[1] == 1 + PADDING.get(name, 0)
