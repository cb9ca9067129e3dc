"""A step of each whole network waits for the GPU for its loss only."""

from tests.card.counts import NETWORKS, whole
from tests.card.test_runs import images, paper
from tests.cases import parametrize
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
"""Further waits: PyTorch omits padding from a sparse gradient and counts the remaining words and gradients."""


@parametrize("name", ALL, quick=1)
def test_a_step_waits_for_its_loss_alone(name):
    assert whole(*ALL[name])[1] == 1 + PADDING.get(name, 0)
