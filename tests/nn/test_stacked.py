"""Stacks of models: each computes and learns as it does alone."""

import pytest
import torch
from torch import nn

from flower_vfl.data.store.dataset import FeatureSpec
from flower_vfl.errors import ConfigError
from flower_vfl.nn import Optimizers, TabularBottom, Wide, bind_dropout
from flower_vfl.nn.images import ConvBottom
from flower_vfl.nn.stacked import Stack

SPEC = FeatureSpec(3, (5, 7))
RUNS, ROWS = 3, 32


def bottom(run, dropout=0.0):
    torch.manual_seed(run)
    model = TabularBottom(SPEC, embedding_width=4, hidden=[16], cut=8, dropout=dropout)
    return bind_dropout(model, torch.Generator().manual_seed(100 + run))


def inputs(generator):
    ids = [torch.randint(0, size, (RUNS, ROWS), generator=generator) for size in SPEC.cardinalities]
    return torch.randn(RUNS, ROWS, 3, generator=generator), torch.stack(ids, dim=2)


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd"])
def test_models_in_a_stack_learn_what_each_learns_alone_dropout_and_sparse_tables_included(optimizer):
    options = {"learning_rate": 0.05, "embedding_decay": 0.01, "schedule": "cosine", "steps": 4}
    stack, alone = Stack([bottom(run, 0.3) for run in range(RUNS)]), [bottom(run, 0.3) for run in range(RUNS)]
    together = Optimizers(stack.module, optimizer, **options)
    apart = [Optimizers(model, optimizer, **options) for model in alone]
    generator = torch.Generator().manual_seed(0)
    for _ in range(4):
        given, gradient = inputs(generator), torch.randn(RUNS, ROWS, 8, generator=generator)
        together.zero_grad()
        stack(*given).backward(gradient)
        together.step()
        for run, model in enumerate(alone):
            apart[run].zero_grad()
            model(*(part[run] for part in given)).backward(gradient[run])
            apart[run].step()
    for run, model in enumerate(alone):
        state, expected = stack.state_of(run), model.state_dict()
        assert state.keys() == expected.keys()
        for name, tensor in expected.items():
            torch.testing.assert_close(state[name], tensor, rtol=1e-4, atol=1e-5)
        stacked_state, own_state = stack.optimizer_of(together.state_dict(), run), apart[run].state_dict()
        assert stacked_state.keys() == own_state.keys()
        apart[run].load_state_dict(stacked_state)
        for name, value in own_state.items():
            torch.testing.assert_close(
                torch.as_tensor(stacked_state[name]), torch.as_tensor(value), rtol=1e-3, atol=1e-4
            )


def test_a_step_touches_only_the_rows_of_the_table_that_its_batches_hold():
    stack = Stack([bottom(run) for run in range(RUNS)])
    x, ids = inputs(torch.Generator().manual_seed(0))
    stack(x, torch.zeros_like(ids)).sum().backward()
    gradient = stack.module.embedding.weight.grad
    assert gradient.is_sparse
    assert sorted(set(gradient.coalesce().indices()[0].tolist())) == [0, 5, 12, 17, 24, 29]


def test_a_watched_layer_shows_its_output_and_passes_its_gradient_on():
    models = [bottom(run) for run in range(RUNS)]
    stack, given = Stack(models, watched=models[0].watched_layers()), inputs(torch.Generator().manual_seed(0))
    z, seen = stack(*given), []
    stack.seen["first"].register_hook(seen.append)
    z.sum().backward()
    for run, model in enumerate(models):
        outputs = []
        model.watched_layers()["first"].register_forward_hook(lambda _, __, out, kept=outputs: kept.append(out))
        (expected,) = torch.autograd.grad(model(*(part[run] for part in given)).sum(), outputs)
        torch.testing.assert_close(seen[0][run], expected)
        torch.testing.assert_close(stack.seen["first"][run], outputs[0])


def test_a_model_that_is_not_finite_does_not_change_the_others():
    models = [bottom(run) for run in range(RUNS)]
    with torch.no_grad():
        models[1].layers[0].weight.fill_(torch.nan)
    stack, given = Stack(models), inputs(torch.Generator().manual_seed(0))
    optimizer = Optimizers(stack.module, learning_rate=0.1)
    stack(*given).sum().backward()
    optimizer.step()
    assert [stack(*given)[run].isfinite().all().item() for run in range(RUNS)] == [True, False, True]


def test_summed_tables_and_images_can_be_stacked_too():
    wide = [Wide(SPEC) for _ in range(RUNS)]
    for model in wide:
        nn.init.normal_(model.embedding.weight)
    given = inputs(torch.Generator().manual_seed(0))
    found = Stack(wide)(*given)
    torch.testing.assert_close(found, torch.stack([model(*(x[run] for x in given)) for run, model in enumerate(wide)]))
    images = [ConvBottom(FeatureSpec(0, (), (1, 8, 8)), channels=[4], cut=2) for _ in range(RUNS)]
    x = torch.randn(RUNS, 5, 1, 8, 8)
    expected = torch.stack([model(x[run]) for run, model in enumerate(images)])
    torch.testing.assert_close(Stack(images)(x), expected, rtol=1e-4, atol=1e-5)


def test_running_statistics_are_refused():
    with pytest.raises(ConfigError, match="running statistics"):
        Stack([nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))] * 2)
