"""Optimizers and schedules of one party follow from the configuration."""

import pytest
from torch import nn

from flower_vfl.protocol.schedule import Schedule
from flower_vfl.training.factories import optimizers_of
from tests.toys import toy_config


@pytest.mark.parametrize("fused", [False, True])
def test_the_fused_kernel_is_an_option_of_the_configuration(fused):
    schedule = Schedule(0, 100, 10, 10, 10, 1, 0.0, ())
    optimizers = optimizers_of(toy_config(training={"fused": fused}), nn.Linear(2, 1), schedule)
    assert bool(optimizers._optimizers[0].defaults["fused"]) is fused
