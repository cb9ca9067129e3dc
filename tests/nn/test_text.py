import numpy as np
import pytest
import torch
from torch import nn

from flower_vfl.apps.factories import default_bottom, default_top
from flower_vfl.config import build_config
from flower_vfl.data.store.dataset import FeatureSpec
from flower_vfl.errors import ConfigError
from flower_vfl.nn import TextBottom, watched_layers
from flower_vfl.nn.optim import Optimizers
from tests.toys import text_data

TEXTS = FeatureSpec(0, (), (12,), vocabulary=30)


def config_of(**model):
    return build_config({"model": {"network": "textcnn", **model}})


def batch(rows=6):
    return text_data().party("text").train.gather(np.arange(rows))[0]


def test_the_network_is_that_of_the_paper():
    bottom = default_bottom(FeatureSpec(0, (), (12,), vocabulary=9, vectors=np.ones((9, 50), np.float32)), config_of())
    top = default_top((600,), 14, config_of())
    filters = [part for part in bottom.modules() if isinstance(part, nn.Conv1d)]
    assert [(f.in_channels, f.out_channels, f.kernel_size) for f in filters] == [
        (50, 200, (span,)) for span in (3, 4, 5)
    ]
    assert bottom(torch.zeros(2, 12, dtype=torch.int64)).shape == (2, 600)
    linear = [part for part in top.modules() if any(True for _ in part.parameters(recurse=False))]
    assert [(type(part), part.in_features, part.out_features) for part in linear] == [(nn.Linear, 600, 14)]


def test_a_feature_is_the_largest_output_of_its_filter_along_the_text():
    bottom = TextBottom(TEXTS, cut=6, embedding_width=4).double()
    ids = batch()
    words = bottom.embedding.weight[ids].detach().numpy()
    expected = []
    for convolution, span in zip(bottom.convolutions, (3, 4, 5), strict=True):
        weight, bias = (part.detach().numpy() for part in convolution[0].parameters())
        places = [words[:, start : start + span] for start in range(12 - span + 1)]
        outputs = np.stack([np.einsum("bsw,fws->bf", place, weight) + bias for place in places])
        expected.append(np.maximum(outputs, 0).max(axis=0))
    np.testing.assert_allclose(bottom(ids).detach().numpy(), np.concatenate(expected, axis=1), atol=1e-12)


def test_word_vectors_start_at_those_of_the_data_and_are_trained_without_changing_the_data():
    spec = text_data().party("text").spec
    before = spec.vectors.copy()
    bottom = TextBottom(spec, cut=300)
    np.testing.assert_array_equal(bottom.embedding.weight.detach().numpy(), before)
    optimizers = Optimizers(bottom)
    bottom(batch()).sum().backward()
    optimizers.step()
    changed = np.flatnonzero((bottom.embedding.weight.detach().numpy() != before).any(axis=1))
    assert set(changed) == set(batch().flatten().tolist()) - {0}
    assert 7 in changed  # a word without a vector learns like the others
    np.testing.assert_array_equal(spec.vectors, before)


def test_a_step_changes_the_words_of_the_batch_and_never_the_padding():
    bottom = TextBottom(TEXTS, cut=300, embedding_width=4)
    ids = torch.tensor([[5, 6, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0]])
    bottom(ids).sum().backward()
    gradient = bottom.embedding.weight.grad.coalesce()
    assert gradient.is_sparse
    touched = gradient.indices()[0][gradient.values().abs().sum(1) > 0]
    assert touched.tolist() == [5, 6, 7]


def test_without_vectors_words_start_small_and_padding_and_unseen_words_at_zero():
    weight = TextBottom(TEXTS, cut=6, embedding_width=40).embedding.weight
    assert not weight[:2].any()
    assert 0.05 < float(weight[2:].detach().std()) < 0.2
    assert default_bottom(TEXTS, config_of(embedding_width=7)).embedding.weight.shape == (30, 7)


def test_of_equal_maxima_only_one_gets_the_gradient():
    bottom = TextBottom(TEXTS, cut=6)
    with torch.no_grad():
        bottom.embedding.weight.fill_(1.0)
        for convolution in bottom.convolutions:
            convolution[0].weight.fill_(1.0)
    outputs = []

    def keep(_module, _inputs, output):
        output.retain_grad()
        outputs.append(output)

    watched_layers(bottom)["first"].register_forward_hook(keep)
    bottom(batch(2)).sum().backward()
    assert outputs[0].shape == (2, 2, 10)
    assert sorted(outputs[0].grad.flatten().unique().tolist()) == [0.0, 1.0]


@pytest.mark.parametrize(
    ("spec", "model", "text"),
    [
        (FeatureSpec(3, (2,)), {}, "needs texts of at least 5 words"),
        (FeatureSpec(0, (), (1, 8, 8)), {}, "needs texts"),
        (FeatureSpec(0, (), (4,), vocabulary=9), {}, "texts of at least 5 words"),
        (TEXTS, {"cut": 32}, "multiple of 3, given 32"),
        (text_data().party("text").spec, {"embedding_width": 50}, "embedding_width is 50, .* of width 5"),
        (TEXTS, {"network": "auto"}, "set model.network to 'textcnn'"),
        (TEXTS, {"dropout": 0.5}, "model.dropout is 0.5, which the network 'textcnn' does not have"),
        (TEXTS, {"network": "mnist"}, "takes rows of shape"),
    ],
)
def test_what_does_not_fit_is_refused(spec, model, text):
    with pytest.raises(ConfigError, match=text):
        default_bottom(spec, config_of(**model))
