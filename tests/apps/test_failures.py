"""Parties that fail, lie or do not fit: the run ends in seconds, names party and reason, and keeps its metrics."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import pytest
import torch
from threadpoolctl import threadpool_info
from torch import nn

from flower_vfl.apps import run
from flower_vfl.apps.client_app import make_client_app
from flower_vfl.apps.factories import computing, default_bottom
from flower_vfl.apps.local_grid import LocalGrid
from flower_vfl.apps.model import load_model, model_path
from flower_vfl.config import build_config
from flower_vfl.errors import ConfigError, DataError, OutputExistsError, PartyError, ProtocolError, TrainingError
from flower_vfl.parties.feature import FeatureParty, batch_limit
from flower_vfl.protocol.frame import Frame, Kind
from flower_vfl.protocol.tensors import DTYPES
from flower_vfl.strategies import Observer, VerticalStrategy
from flower_vfl.tracking import read_steps
from flower_vfl.training.party_report import read_report
from flower_vfl.version import software
from tests.cases import parametrize
from tests.toys import toy_config, toy_data

TRANSPORTS = ("inproc", "stream", "messages")


class Faulty(nn.Module):
    """A bottom model that does something wrong in one of its training passes."""

    def __init__(self, inner, act, at):
        super().__init__()
        self.inner, self.act, self.at, self.passes = inner, act, at, 0

    def forward(self, *inputs):
        z = self.inner(*inputs)
        if self.training:
            self.passes += 1
            if self.passes == self.at:
                return self.act(z)
        return z


def faulty_at(party_width, act, at=4):
    """Return a factory that makes a faulty model for the party with this number of columns."""

    def bottom(spec, config):
        model = default_bottom(spec, config)
        return Faulty(model, act, at) if spec.numeric == party_width else model

    return bottom


def uneven_data():
    """Return data in which party "a" has 6 columns and party "b" 5."""
    data = toy_data(rows=300)
    narrow = toy_data(rows=300, shape=(5,), seed=1).party("b")
    return dataclasses.replace(data, tables={"a": data.party("a"), "b": narrow})


def die(_z):
    raise RuntimeError("out of luck")


@pytest.mark.parametrize("kind", TRANSPORTS)
def test_a_party_that_dies_ends_the_run_in_seconds_with_its_name_and_reason_and_keeps_the_steps(kind, tmp_path):
    data, config = uneven_data(), toy_config(transport={"kind": kind})
    started = time.monotonic()
    with pytest.raises(PartyError, match=r"(?s)'b'.*out of luck"):
        run(config, data=lambda _: data, bottom=faulty_at(5, die), out=tmp_path / "run")
    assert time.monotonic() - started < 10
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["status"] == "failed"
    assert "out of luck" in result["error"]
    assert result["cost"]["steps"] == 3
    table = read_steps(tmp_path / "run")
    assert sorted(set(table["step"].to_pylist())) == [0, 1, 2]
    assert {"train_loss", "monitor_auc"} <= set(table["metric"].to_pylist())


class Quoting(Observer):
    """Fails with an error that quotes a whole tensor, as that of a user's own method may."""

    def on_step(self, step, epoch, loss, leak):
        raise RuntimeError("given " + "0.25, " * 500_000 + "which is wrong")


def test_the_result_has_the_beginning_and_the_end_of_an_error_as_long_as_a_tensor(tmp_path):
    with pytest.raises(RuntimeError):
        run(toy_config(), data=lambda _: toy_data(), out=tmp_path / "run", observers=(Quoting(),))
    error = json.loads((tmp_path / "run" / "result.json").read_text())["error"]
    assert error.startswith("RuntimeError: given 0.25, ")
    assert error.endswith("0.25, which is wrong")
    assert re.search(r" \[2,99\d,\d{3} characters left out\] ", error)
    assert len(error) < 10_100


@pytest.mark.parametrize("kind", TRANSPORTS)
@parametrize(
    ("act", "error", "reason"),
    [
        (
            lambda z: z * math.nan,
            TrainingError,
            r"party 'b': 'embedding' of step 3 .*not finite, after a loss of 0\.\d",
        ),
        (lambda z: z[:, 1:], ProtocolError, "must be float32"),
        (lambda z: z[1:], ProtocolError, "must be float32"),
        (lambda z: z.double(), ProtocolError, "given float64"),
    ],
    ids=["NaN", "width", "rows", "dtype"],
    quick=1,
)
def test_a_party_that_sends_something_wrong_is_refused(kind, act, error, reason):
    data, config = uneven_data(), toy_config(transport={"kind": kind})
    with pytest.raises(error, match=reason):
        run(config, data=lambda _: data, bottom=faulty_at(5, act))


def falsified(key, value):
    """Return a function that changes one value of the first leak in a report; where `key` is None, all leaks."""

    def falsify(report):
        leakage = report.get("leakage", [])
        wrong = value if key is None else [{**leakage[0], key: value}, *leakage[1:]]
        return {**report, "leakage": wrong}

    return falsify


@parametrize(
    ("falsify", "where"),
    [
        (lambda _: [], "cannot be read"),
        (lambda _: {}, "sent an invalid report; field 'weights'"),
        (lambda report: {**report, "weights": ["0" * 64]}, "'weights'"),
        (lambda report: {**report, "weights": "the best"}, "'weights'"),
        (falsified(None, {}), "'leakage'"),
        (falsified(None, [0]), r"'leakage\.0'"),
        (falsified(None, [{"label": "norm"}]), r"'leakage\.0\.metric'"),
        (falsified("label", "cosine"), "reports of the attack 'cosine', which is none of this run"),
        (falsified("label", ["norm"]), r"'leakage\.0\.label'"),
        (falsified("phase", "afterwards"), r"'leakage\.0\.phase'"),
        (falsified("q95", "0.5"), r"'leakage\.0\.q95'"),
        (falsified("mean", 10**400), r"'leakage\.0\.mean'"),
        (falsified("max", math.nan), r"'leakage\.0\.max'"),
        (falsified("measures", {"auc": 0}), r"'leakage\.0\.measures\.auc'"),
        (falsified("values", [None]), r"'leakage\.0\.values\.0'"),
    ],
    quick=3,
)
def test_an_invalid_report_is_refused_with_its_wrong_field_and_loses_no_weights(falsify, where, tmp_path, monkeypatch):
    honest = FeatureParty.report
    monkeypatch.setattr(
        FeatureParty, "report", lambda party: falsify(honest(party)) if party.name == "b" else honest(party)
    )
    with pytest.raises(ProtocolError, match=rf"(?s)party 'b' .*{where}"):
        run(toy_config(), data=lambda _: toy_data(rows=200), out=tmp_path / "run")
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    model = load_model(model_path(tmp_path / "run", "label"))
    assert (result["status"], result["weights"]["label"]) == ("failed", model.digest)


@pytest.mark.parametrize("text", ["[" * 200_000, '{"a":' * 200_000, "nonsense", "7", None])
def test_a_report_that_cannot_be_read_is_refused_and_its_party_named(text):
    tensors = {} if text is None else {"report": torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)}
    with pytest.raises(ProtocolError, match="party 'a' sent a report that cannot be read"):
        read_report("a", Frame(Kind.REPORT, tensors=tensors), [])


@pytest.mark.parametrize("dtype", [*DTYPES.values()])
def test_a_report_in_another_number_format_is_refused_and_its_party_named(dtype):
    text = torch.frombuffer(bytearray(b'{"weights": "" }'), dtype=torch.uint8)
    frame = Frame(Kind.REPORT, tensors={"report": text.view(dtype)})
    if dtype is torch.uint8:
        assert read_report("a", frame, [])["weights"] == ""
        return
    with pytest.raises(ProtocolError, match="party 'a' sent a report that cannot be read"):
        read_report("a", frame, [])


@pytest.mark.slow
def test_forged_names_and_sources_in_a_partys_report_are_ignored(monkeypatch):
    def forge(party):
        report = honest(party)
        forged = {"party": "somebody", "source": "monitor", "attack": "nothing", "params": {"k": 10**9}, "known": 10**9}
        return {**report, "leakage": [{**entry, **forged} for entry in report["leakage"]]}

    found = []
    honest = FeatureParty.report
    for report in (honest, forge):
        monkeypatch.setattr(FeatureParty, "report", report)
        config = toy_config(attack={"names": ["norm", "hint(k=2)", "model_completion(k=4,draws=2)"]})
        found.append(run(config, data=lambda _: toy_data(rows=200)).summary)
    assert found[0]["leakage"] == found[1]["leakage"]
    assert found[0]["rebuild"] == found[1]["rebuild"]


@pytest.mark.parametrize("kind", TRANSPORTS)
def test_a_report_may_be_longer_than_the_header_of_a_frame_and_than_any_batch(kind, monkeypatch):
    honest = FeatureParty.report
    monkeypatch.setattr(
        FeatureParty, "report", lambda party: (report := honest(party)) | {"leakage": report["leakage"] * 300}
    )
    config = toy_config(attack={"names": ["norm"], "monitor": False}, transport={"kind": kind})
    leakage = run(config, data=lambda _: toy_data(rows=200)).summary["leakage"]
    assert len(json.dumps(leakage)) > 2 * batch_limit(100, (8,))
    assert len(leakage) == 2 * 2 * 300


def test_an_error_in_the_summary_loses_no_weights(tmp_path, monkeypatch):
    def fail(*given, **more):
        raise ArithmeticError("no sum")

    monkeypatch.setattr("flower_vfl.apps.training.summarise", fail)
    with pytest.raises(ArithmeticError, match="no sum"):
        run(toy_config(), data=lambda _: toy_data(rows=200), out=tmp_path / "run")
    assert load_model(model_path(tmp_path / "run", "label")).card.party == "label"
    assert not (tmp_path / "run" / "result.json").exists()


def grid_of(client_data, config):
    return LocalGrid(make_client_app(data=lambda _: client_data, config=config), len(client_data.parties), {})


def start(label_data, client_data, config, client_config=None):
    strategy = VerticalStrategy(
        lambda shape: nn.Linear(shape[0], 1),
        label_data.labels(),
        parties=label_data.parties,
        config=config,
        alignment=label_data.alignment.digest,
    )
    return strategy.start(grid_of(client_data, client_config or config))


def test_a_party_with_another_number_of_rows_does_not_fit():
    with pytest.raises(PartyError, match="its rows is 299, here it is 300"):
        start(toy_data(rows=300), toy_data(rows=299), toy_config())


def test_a_party_with_other_ids_does_not_fit_and_learns_nothing_of_the_digest_here(caplog):
    digest = "0123456789abcdef"
    here, other = (dataclasses.replace(toy_data(), digest=one) for one in (digest, "f00"))
    with pytest.raises(PartyError, match=r"its alignment is another than here.*prepare or align") as refused:
        start(here, other, toy_config())
    assert not any(digest[at : at + 6] in str(refused.value) for at in range(len(digest) - 5))
    assert f"is f00, here it is {digest[:12]}" in caplog.text
    assert digest[:13] not in caplog.text


@pytest.mark.parametrize("change", [{"batch_size": 32}, {"epochs": 3}, {"validation": 0.2}])
def test_a_party_with_another_configuration_does_not_fit(change):
    with pytest.raises(PartyError, match="another configuration"):
        start(toy_data(), toy_data(), toy_config(), toy_config(training=change))


def test_a_party_with_another_package_version_is_refused_on_both_hosts(monkeypatch):
    other = {**software(), "version": "0.0.9", "build": "f00"}
    monkeypatch.setattr("flower_vfl.parties.feature.software", lambda: other)
    words = (
        r"the host of party 'a' has flower-vfl 0\.0\.9 \(build f00\), the label party's host has .*the host of party "
    )
    words += r"'a' has the older one: install the other host's there, then start its SuperNode"
    grid = grid_of(toy_data(parties=1), config := toy_config(transport={"kind": "stream"}))
    strategy = VerticalStrategy(nn.Linear(8, 1), toy_data(parties=1).labels(), parties=["a"], config=config)
    with pytest.raises(PartyError, match=words):
        strategy.start(grid)
    grid.join(5)
    assert re.search(words, str(grid.failures[0]))


def test_a_party_with_another_torch_trains_and_causes_a_warning(monkeypatch, caplog):
    monkeypatch.setattr("flower_vfl.parties.feature.software", lambda: {**software(), "torch": "2.6.0+cu124"})
    result = run(toy_config(), data=lambda _: toy_data())
    assert "the host of party 'a' has torch 2.6.0+cu124, the label party's host has" in caplog.text
    assert "may differ in single bits" in caplog.text
    environment = result.summary["environment"]
    assert environment["hosts"]["a"] == {
        **environment["hosts"]["a"],
        "torch": "2.6.0+cu124",
        "build": environment["build"],
    }


def test_parties_must_agree_on_the_steps_in_flight():
    with pytest.raises(PartyError, match="in_flight"):
        start(toy_data(), toy_data(), toy_config(), toy_config(transport={"in_flight": 2}))


def test_the_wrong_number_of_nodes_is_refused_with_the_exact_setting():
    from flower_vfl.errors import SetupError

    data, config = toy_data(parties=3), toy_config(transport={"connect_timeout": 0.3})
    client = make_client_app(data=lambda _: data, config=config)
    strategy = VerticalStrategy(nn.Linear(24, 1), data.labels(), parties=data.parties, config=config)
    with pytest.raises(SetupError, match=r'num-supernodes=3 client-resources-num-cpus=1 init-args-num-cpus=3"'):
        strategy.start(LocalGrid(client, 2, {}))


def test_nodes_without_a_party_are_spare():
    data, config = toy_data(parties=1), toy_config(transport={"kind": "stream"})
    client = make_client_app(data=lambda _: data, config=config)
    strategy = VerticalStrategy(nn.Linear(8, 1), data.labels(), parties=data.parties, config=config)
    strategy.start(LocalGrid(client, 3, {}))
    assert strategy.outcome.stopped == "finished"


@pytest.mark.parametrize("kind", ["stream", "messages"])
@parametrize("wire_dtype", ["exact", "float16", "bfloat16"], quick=1)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_training_that_diverges_gives_the_same_error_with_every_wire_dtype(kind, wire_dtype, value):
    data, config = uneven_data(), toy_config(transport={"kind": kind, "wire_dtype": wire_dtype})
    words = r"training diverged at party 'b': 'embedding' of step 3 .*not finite, after a loss of"
    with pytest.raises(TrainingError, match=words):
        run(config, data=lambda _: data, bottom=faulty_at(5, lambda z: torch.full_like(z, value)))


def test_a_loss_that_is_not_finite_stops_training_and_says_what_to_try():
    config = toy_config(training={"learning_rate": 1e30})
    with pytest.raises((TrainingError, ProtocolError, PartyError), match=r"learning_rate|not finite"):
        run(config, data=lambda _: toy_data())


class Rounding(nn.Module):
    """A user's own bottom model that gives whole numbers."""

    def __init__(self, spec, config):
        super().__init__()
        self.last = nn.Linear(spec.numeric, config.model.cut)

    def forward(self, x):
        return self.last(x).long()


def rounding_at(width):
    return lambda spec, config: (Rounding if spec.numeric == width else default_bottom)(spec, config)


@pytest.mark.slow
@pytest.mark.parametrize("kind", TRANSPORTS)
def test_embeddings_that_are_no_real_numbers_are_refused_with_the_name_of_the_party(kind):
    reason = r"party 'b' must return a floating point tensor .* given torch\.int64 \(2, 8\)"
    with pytest.raises(PartyError, match=reason):
        run(toy_config(transport={"kind": kind}), data=lambda _: uneven_data(), bottom=rounding_at(5))


def test_the_label_partys_own_embeddings_must_be_real_numbers_too():
    data = dataclasses.replace(uneven_data(), label_party="b")
    with pytest.raises(TrainingError, match=r"bottom model of the label party must return .* given torch\.int64"):
        run(toy_config(), data=lambda _: data, bottom=rounding_at(5))


def test_a_folder_with_something_in_it_is_not_overwritten(tmp_path):
    (tmp_path / "precious").write_text("x")
    with pytest.raises(OutputExistsError, match="not empty"):
        run(toy_config(), data=lambda _: toy_data(), out=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]


@pytest.mark.parametrize(
    ("config", "error"),
    [
        (toy_config(defenses=[{"name": "iso", "t": -1}]), ConfigError),
        (toy_config(defenses=[{"name": "nothing"}]), ConfigError),
        (toy_config(attack={"names": ["nothing"]}), ConfigError),
        (toy_config(parties={"features": ["z"]}), ConfigError),
        (toy_config(sinks=["wandb"]), ConfigError),
    ],
)
def test_bad_input_leaves_nothing_behind(config, error, tmp_path):
    with pytest.raises(error):
        run(config, data=lambda _: toy_data(), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_party_whose_data_cannot_be_read_says_so_as_bad_input():
    class Gone(type(toy_data())):
        def party(self, name):
            raise DataError("the file is gone")

    data = toy_data()
    gone = Gone(data.name, data.tables, data.label_party, data.target)
    with pytest.raises(DataError, match="the file is gone"):
        run(toy_config(), data=lambda _: gone)


def test_ctrl_c_keeps_what_was_measured(tmp_path):
    class Impatient(Observer):
        def on_step(self, step, epoch, loss, leak):
            if step == 5:
                raise KeyboardInterrupt

    for kind in TRANSPORTS:
        folder = tmp_path / kind
        config = toy_config(transport={"kind": kind})
        with pytest.raises(KeyboardInterrupt):
            run(config, data=lambda _: toy_data(), out=folder, observers=(Impatient(),))
        result = json.loads((folder / "result.json").read_text())
        assert result["status"] == "interrupted"
        steps = set(read_steps(folder)["step"].to_pylist())
        assert {0, 1, 2, 3, 4, 5} <= steps
        assert result["leakage"]


def precision():
    return torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32


@pytest.mark.parametrize(("wanted", "set_there"), [("float32", ("highest", False)), ("tf32", ("high", True))])
def test_a_run_computes_in_its_precision_and_leaves_that_of_the_process_as_it_was(wanted, set_there):
    before, config = precision(), toy_config().model_copy(update={"precision": wanted})
    with computing(config):
        assert precision() == set_there
    with pytest.raises(KeyboardInterrupt), computing(config):
        raise KeyboardInterrupt
    assert precision() == before


def threads():
    import scipy.linalg  # noqa: F401 # has an OpenBLAS of its own, beside NumPy's

    pools = [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]
    assert pools
    return [torch.get_num_threads(), *pools]


@pytest.mark.parametrize("count", [1, 2])
def test_a_run_computes_with_its_threads_and_leaves_those_of_the_process_as_they_were(count):
    seen = set()

    class Threads(Observer):
        def on_step(self, step, epoch, loss, leak):
            seen.update(threads())

    before = threads()
    config = toy_config(threads=count, training={"epochs": 1}, attack={"names": []})
    run(config, data=lambda _: toy_data(rows=140), observers=[Threads()])
    assert seen == {count}
    assert threads() == before


@contextmanager
def another_party(count):
    """Run a party that computes with `count` threads, in a thread of its own, until the block ends."""
    ready, over = threading.Event(), threading.Event()

    def compute():
        with computing(toy_config(threads=count)):
            ready.set()
            over.wait(10)

    with ThreadPoolExecutor() as pool:
        party = pool.submit(compute)
        assert ready.wait(10)
        yield
        over.set()
        party.result()


def test_the_threads_of_a_process_come_back_in_whatever_order_parties_end():
    """A later thread would start with the number that the last party left."""
    with ThreadPoolExecutor() as pool, ExitStack() as parties:
        before = pool.submit(threads).result()
        with computing(toy_config(threads=2)):
            parties.enter_context(another_party(2))
        parties.close()
    with ThreadPoolExecutor() as later:
        assert later.submit(threads).result() == before


def test_a_run_restores_its_threads_while_a_party_of_an_earlier_run_goes_on():
    before = threads()
    with another_party(1):
        with computing(toy_config(threads=2)):
            assert torch.get_num_threads() == 2
        assert torch.get_num_threads() == before[0]
    assert threads() == before


@pytest.mark.parametrize(
    ("model", "text"),
    [
        ({"network": "minst"}, "did you mean 'mnist'"),
        ({"network": "mnist", "split": "layer9"}, "layer1, layer2"),
        ({"network": "resnet20", "cut": 5}, "no other: leave model.cut out"),
    ],
)
def test_an_impossible_network_is_refused_before_anything_is_written(model, text, tmp_path):
    data = toy_data(60, 20, 1, (1, 28, 28))
    with pytest.raises(ConfigError, match=text):
        run(build_config({"model": model}), data=lambda _: data, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
