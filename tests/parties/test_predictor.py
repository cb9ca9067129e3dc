"""A feature party of a finished training answers with embeddings, as in evaluation, and accepts nothing else."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from flower_vfl.data.store.source import ArraySource
from flower_vfl.errors import PermissionDeniedError, ProtocolError, TrainingError
from flower_vfl.parties.predictor import Predictor
from flower_vfl.protocol.frame import Frame, Kind
from flower_vfl.version import software

COLUMNS = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)


def predictor(bottom=None, permit=lambda rows: None):
    model = bottom or nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    return Predictor("a", model, ArraySource(COLUMNS), rows="r", weights="w", batch_size=8, permit=permit)


def request(rows, step=0, **fields):
    tensor = torch.as_tensor(rows)
    return Frame(Kind.PREDICT, step, {"count": len(rows), **fields}, {"rows": tensor})


def test_it_answers_with_the_embeddings_of_the_rows_in_their_order():
    torch.manual_seed(0)
    party = predictor()
    rows = [7, 0, 19, 7]
    found = party.handle(request(rows, step=3))
    assert (found.kind, found.step) == (Kind.EMBEDDING, 3)
    linear, norm, _ = party._bottom
    z = torch.from_numpy(COLUMNS[rows]) @ linear.weight.T + linear.bias
    expected = (z - norm.running_mean) / torch.sqrt(norm.running_var + norm.eps) * norm.weight + norm.bias
    torch.testing.assert_close(found.tensors["embedding"], expected)
    assert not found.tensors["embedding"].requires_grad


def test_answering_changes_nothing_in_the_model():
    party = predictor()
    before = {name: value.clone() for name, value in party._bottom.state_dict().items()}
    for _ in range(3):
        party.handle(request([1, 2, 3]))
    after = party._bottom.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_it_introduces_itself_with_its_weights_and_rows():
    fields = predictor().hello().fields
    own = {"party": "a", "shape": "[4]", "dtype": "float32", "count": 20, "rows": "r", "weights": "w"}
    assert fields == {**own, **software()}


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (request([]), "0 rows were asked for at once; allowed are 1 to 8"),
        (request(list(range(9))), "9 rows were asked for at once"),
        (request([20]), "rows 20 to 20 were asked for; there are 0 to 19"),
        (request([-1, 3]), "rows -1 to 3 were asked for"),
        (request([1], count=2), "must be int64"),
        (request([1.0]), "must be int64"),
        (request([1], count="1"), "needs the integer field 'count'"),
        (Frame(Kind.STEP, 0, {"gradient_of": 0}, {"gradient": torch.ones(1, 4)}), "does not take step frames"),
        (Frame(Kind.AUDIT, fields={"table": "train"}), "does not take audit frames"),
    ],
)
def test_other_requests_are_refused_and_no_rows_are_counted(frame, message):
    counted = []
    with pytest.raises(ProtocolError, match=message):
        predictor(permit=counted.append).handle(frame)
    assert counted == []


def test_rows_are_counted_before_they_are_read():
    counted = []

    def permit(rows):
        counted.append(rows)
        raise PermissionDeniedError("not today")

    with pytest.raises(PermissionDeniedError, match="not today"):
        predictor(permit=permit).handle(request([1, 2]))
    assert counted == [2]


def test_a_finish_frame_ends_it_and_its_report_is_empty():
    party = predictor()
    assert not party.finished
    report = party.handle(Frame(Kind.FINISH))
    assert party.finished
    assert (report.kind, report.fields, report.tensors) == (Kind.REPORT, {}, {})


def test_a_model_that_gives_no_embedding_is_refused_at_once():
    with pytest.raises(TrainingError, match="must return a floating point tensor"):
        predictor(bottom=nn.Flatten(0))
