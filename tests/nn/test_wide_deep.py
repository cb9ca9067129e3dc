"""Wide & Deep: the wide part against one-hot columns, the sum of logits, and invalid data and settings."""

import numpy as np
import pytest
import torch
from torch import nn

from flower_vfl.apps.factories import default_bottom, default_own, default_top
from flower_vfl.config import build_config
from flower_vfl.data.store.dataset import FeatureSpec
from flower_vfl.errors import ConfigError, TrainingError
from flower_vfl.nn import Optimizers, Wide
from flower_vfl.parties.network import LabelModel

SPEC = FeatureSpec(3, (4, 6, 2))
NUMBERS = torch.randn(9, 3, generator=torch.Generator().manual_seed(1))
IDS = torch.stack([torch.arange(9) % size for size in SPEC.cardinalities], dim=1)


def columns():
    """Return the numeric columns, and a one-hot column for each level, (9, 15)."""
    hot = [nn.functional.one_hot(IDS[:, k], size) for k, size in enumerate(SPEC.cardinalities)]
    return torch.cat([NUMBERS, *hot], dim=1).double()


@pytest.mark.parametrize("classes", [2, 3])
def test_the_wide_part_is_a_linear_model_of_one_hot_columns(classes):
    wide, weights = Wide(SPEC, classes=classes), torch.randn(15, 1 if classes == 2 else classes)
    with torch.no_grad():
        wide.linear.weight.copy_(weights[:3].T)
        wide.embedding.weight.copy_(weights[3:])
    expected = columns() @ weights.double()
    assert torch.allclose(wide(NUMBERS, IDS).double(), expected.squeeze(1) if classes == 2 else expected, atol=1e-5)


def test_the_wide_part_gives_zero_before_training():
    assert not Wide(SPEC)(NUMBERS, IDS).any()


def test_a_step_touches_the_levels_of_its_batch_only():
    wide = Wide(FeatureSpec(0, (50, 50)))
    optimizers = Optimizers(wide)
    wide(torch.tensor([[1, 2], [1, 3]])).sum().backward()
    optimizers.step()
    assert wide.embedding.weight.flatten().nonzero().flatten().tolist() == [1, 52, 53]


@pytest.mark.parametrize("spec", [FeatureSpec(2, ()), FeatureSpec(0, (3, 4))])
def test_tables_of_one_kind_of_column_are_taken(spec):
    inputs = [NUMBERS[:, :2]] if spec.numeric else [IDS[:, :2] % 3]
    assert Wide(spec)(*inputs).shape == (9,)
    with pytest.raises(TrainingError, match="takes 1 tensors"):
        Wide(spec)(NUMBERS, IDS)


def test_the_network_is_that_of_the_paper():
    model = {"network": "wide-deep", "embedding_width": 4, "bottom": [128, 128], "top": [128, 128, 128]}
    config = build_config({"model": model})
    bottom, top = default_bottom(SPEC, config), default_top((128,), 2, config)
    linear = [[part for part in half.modules() if isinstance(part, nn.Linear)] for half in (bottom, top)]
    widths = [[(part.in_features, part.out_features) for part in half] for half in linear]
    assert widths == [[(3 + 3 * 4, 128), (128, 128), (128, 128)], [(128, 128)] * 3 + [(128, 1)]]
    assert bottom.embedding.weight.shape == (12, 4)
    assert default_own(SPEC, 2, config).embedding.weight.shape == (12, 1)


def test_with_other_networks_the_label_partys_columns_give_an_embedding():
    assert default_own(SPEC, 2, build_config({"model": {"cut": 7}}))(NUMBERS, IDS).shape == (9, 7)


class TableRows:
    """Source of the rows of a table."""

    def gather(self, rows):
        return NUMBERS[torch.from_numpy(rows)], IDS[torch.from_numpy(rows)]


class NoDefense:
    """No defense."""

    def embed(self, z, *, party="", train=True):
        return z, {}

    def predict(self, z):
        return None


def test_logits_of_the_wide_part_are_added_to_those_of_the_top_model():
    top, wide, z = nn.Linear(4, 1), Wide(SPEC), torch.randn(5, 4)
    nn.init.normal_(wide.embedding.weight)
    rows = np.array([8, 0, 3, 3, 1])
    found = LabelModel(top, NoDefense(), ("a",), bottom=wide).logits({"a": z}, TableRows(), rows)
    expected = top(z).squeeze(1) + wide(*TableRows().gather(rows))
    assert torch.allclose(found, expected.detach())


def test_an_own_part_whose_logits_do_not_fit_is_refused():
    label = LabelModel(nn.Linear(4, 3), NoDefense(), ("a",), bottom=Wide(SPEC))
    with pytest.raises(ConfigError, match=r"logits \(5, 3\), but gives \(5,\)"):
        label.logits({"a": torch.randn(5, 4)}, TableRows(), np.arange(5))


def test_data_that_are_no_tables_are_refused():
    config = build_config({"model": {"network": "wide-deep"}})
    with pytest.raises(ConfigError, match="takes tables"):
        default_bottom(FeatureSpec(0, (), (1, 28, 28)), config)
    with pytest.raises(ConfigError, match="numeric or categorical"):
        Wide(FeatureSpec(0, (), (1, 28, 28)))


def test_settings_that_it_does_not_have_are_refused():
    with pytest.raises(ConfigError, match=r"model\.pools"):
        default_bottom(SPEC, build_config({"model": {"network": "wide-deep", "pools": 2}}))
