"""On a host of its own a feature party answers only what its owner allows."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict

from flower_vfl.apps import prediction_client
from flower_vfl.apps.model import model_path
from flower_vfl.apps.node import DATA_VARIABLE
from flower_vfl.apps.prediction_client import Quota
from flower_vfl.apps.server_app import make_server_app
from flower_vfl.config import to_run_config
from flower_vfl.data.sources.catalog import prepare
from flower_vfl.data.store.dataset import open_dataset
from flower_vfl.data.store.parts import write_part
from flower_vfl.errors import ConfigError, DataError, PartyError, PermissionDeniedError, UnreachableError
from flower_vfl.metrics import leak_auc
from flower_vfl.transport.signing import LABEL_KEY_VARIABLE
from tests.apps.test_consent import write_key
from tests.grids import DeployedGrid
from tests.toys import toy_config


def start(nodes, run_config, grid_kind=DeployedGrid):
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=run_config)
    grid = grid_kind(nodes, run_config)
    make_server_app()(grid, context)
    return grid


def write_files(folder, ids, seed=0):
    """Write the columns of two parties into a file each; the second has the label."""
    import numpy as np

    rng = np.random.default_rng(seed)
    folder.mkdir(exist_ok=True)
    x, u = rng.normal(size=(2, len(ids)))
    color = rng.choice(["red", "green", "blue"], len(ids))
    y = (x + u + (color == "red") > 0).astype(int)
    pa_csv.write_csv(pa.table({"id": ids, "x": x, "color": color}), folder / "shop.csv")
    pa_csv.write_csv(pa.table({"id": ids, "u": u, "label": y}), folder / "bank.csv")


class Host:
    """Folders that stand for two hosts, and a training that has been finished on them."""

    def __init__(self, root):
        self.root, self.run = root, root / "run"
        self.node = {"party": "shop", "data-path": str(root / "parts" / "shop"), "train-epochs": 9}

    def predict(self, out, grid_kind=DeployedGrid, node=(), transport="stream", fallback="none", **more):
        run_config = {"job": "predict", "predict-run": str(self.run), "predict-out": str(out)}
        run_config |= {f"predict-{key}": str(value) for key, value in more.items()}
        run_config |= {"transport-kind": transport, "transport-fallback": fallback}
        return start([{**self.node, **dict(node)}], run_config, grid_kind)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    root = tmp_path_factory.mktemp("deployed")
    write_files(root / "raw", [f"p{number:04}" for number in range(500)])
    options = {"files": {"shop": "shop.csv", "bank": "bank.csv"}}
    prepare("files", source=root / "raw", out=root / "whole", options=options)
    for party in ("shop", "bank"):
        write_part(root / "whole", party, root / "parts" / party)
    host = Host(root)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLOWER_VFL_STATE", str(root / "state"))
        patch.setenv(DATA_VARIABLE, str(root / "parts" / "bank"))
        training = {"eval_batch_size": 40, "epochs": 5, "learning_rate": 0.02}
        config = toy_config(data={"name": "files"}, transport={"kind": "stream"}, training=training)
        start([host.node], {**to_run_config(config), "out": str(host.run)})
    return host


@pytest.fixture
def host(trained, tmp_path, monkeypatch):
    """The same hosts with a state folder of this test's own."""
    state = shutil.copytree(trained.root / "state", tmp_path / "state")
    monkeypatch.setenv("FLOWER_VFL_STATE", str(state))
    monkeypatch.setenv(DATA_VARIABLE, str(trained.root / "parts" / "bank"))
    return trained


ALLOWED = {"predict-rows-per-day": 1000}


def counts(tmp_path):
    path = tmp_path / "state" / "flower-vfl" / "predictions-shop.json"
    return sum(json.loads(path.read_text()).values()) if path.exists() else 0


@pytest.mark.parametrize("transport", ["stream", "messages"])
def test_hosts_that_hold_only_their_own_parts_repeat_the_runs_test_evaluation(host, tmp_path, transport):
    host.predict(tmp_path / "scores.csv", node=ALLOWED, transport=transport)
    dataset = open_dataset(host.root / "whole")
    found = pa_csv.read_csv(tmp_path / "scores.csv")
    assert found["id"].to_pylist() == dataset.ids("test")
    result = json.loads((host.run / "result.json").read_text())
    assert leak_auc(found["score"].to_numpy(), dataset.labels().test) == result["utility"]["last"]["test_auc"]
    assert counts(tmp_path) == dataset.alignment.test_rows > 80


def test_behind_a_firewall_it_answers_through_flowers_messages_if_the_run_config_allows_it(host, tmp_path, monkeypatch):
    def firewall(*given, **more):
        raise UnreachableError("the endpoint could not be reached")

    monkeypatch.setattr("flower_vfl.transport.dialling.attend", firewall)
    with pytest.raises(PartyError, match="could not be reached"):
        host.predict(tmp_path / "no.csv", node=ALLOWED)
    host.predict(tmp_path / "scores.csv", node=ALLOWED, fallback="messages")
    assert pa_csv.read_csv(tmp_path / "scores.csv")["id"].to_pylist() == open_dataset(host.root / "whole").ids("test")


def test_the_label_partys_host_holds_no_weights_of_others(host):
    assert [path.name for path in (host.run / "weights").iterdir()] == ["label.safetensors"]


def test_a_party_whose_owner_allows_no_predictions_answers_nothing(host, tmp_path):
    with pytest.raises(PartyError, match=r"party 'shop' allows no predictions; its owner can: predict-rows-per-day=N"):
        host.predict(tmp_path / "scores.csv")
    assert not (tmp_path / "scores.csv").exists()
    assert counts(tmp_path) == 0


def test_only_the_label_party_that_the_owner_named_gets_predictions(host, tmp_path, monkeypatch):
    named = {**ALLOWED, "label-key": write_key(tmp_path / "label.key")}
    with pytest.raises(PartyError, match="takes part only in what its label party has signed"):
        host.predict(tmp_path / "no.csv", node=named)
    assert counts(tmp_path) == 0
    monkeypatch.setenv(LABEL_KEY_VARIABLE, str(tmp_path / "label.key"))
    host.predict(tmp_path / "scores.csv", node=named)
    assert (tmp_path / "scores.csv").is_file()


@pytest.mark.parametrize("transport", ["stream", "messages"])
def test_no_more_rows_a_day_than_the_owner_allows_whatever_the_number_of_runs(host, tmp_path, transport):
    (tmp_path / "ids.txt").write_text("p0000\np0001\np0002\n")
    node = {"predict-rows-per-day": 7}
    for name in ("one.csv", "two.csv"):
        host.predict(tmp_path / name, node=node, ids=tmp_path / "ids.txt", transport=transport)
    with pytest.raises(PartyError, match=r"allows 7 rows a day .*, 1 of them are left today; 3 were asked for"):
        host.predict(tmp_path / "three.csv", node=node, ids=tmp_path / "ids.txt", transport=transport)
    assert not (tmp_path / "three.csv").exists()
    assert counts(tmp_path) == 6


def test_a_label_party_that_asks_for_more_rows_than_it_announced_is_refused(host, tmp_path, monkeypatch):
    from flower_vfl.apps import prediction_server

    genuine = prediction_server._offer
    monkeypatch.setattr(prediction_server, "_offer", lambda *given, **more: {**genuine(*given, **more), "asked": "1"})
    with pytest.raises(PartyError, match="allows 50 rows a day"):
        host.predict(tmp_path / "scores.csv", node={"predict-rows-per-day": 50})
    assert counts(tmp_path) == 40  # one batch; the second would have been too much
    assert not (tmp_path / "scores.csv").exists()


def test_a_label_party_that_claims_a_simulation_gets_no_predictions(host, tmp_path, monkeypatch):
    from flower_vfl.apps import prediction_server

    genuine = prediction_server._offer
    lie = {"simulation": True, "run": str(host.root), "partition-id": 0}
    monkeypatch.setattr(prediction_server, "_offer", lambda *given, **more: {**genuine(*given, **more), **lie})
    with pytest.raises(PartyError, match="allows no predictions"):
        host.predict(tmp_path / "scores.csv")
    with pytest.raises(PartyError, match="this node has no party"):
        host.predict(tmp_path / "scores.csv", node={"party": "", "partition-id": 0})


def test_a_node_that_names_no_party_is_refused(host, tmp_path):
    with pytest.raises(PartyError, match="this node has no party"):
        host.predict(tmp_path / "scores.csv", node={"party": ""})


def test_offers_of_a_deployment_carry_no_path_and_name_no_row(host, tmp_path):
    seen = []

    class Recording(DeployedGrid):
        def push_messages(self, messages):
            messages = list(messages)
            seen.extend(dict(message.content.config_records["offer"]) for message in messages)
            return super().push_messages(messages)

    host.predict(tmp_path / "scores.csv", Recording, node=ALLOWED)
    (offer,) = seen
    assert not [value for value in offer.values() if isinstance(value, str) and str(tmp_path.anchor) in value]
    assert {"training", "parties", "asked", "data"} < set(offer)


def test_nothing_comes_down_to_a_feature_party_but_positions(host, tmp_path, monkeypatch):
    from flower_vfl.parties.predictor import Predictor

    seen, genuine = [], Predictor.handle
    monkeypatch.setattr(Predictor, "handle", lambda self, frame: (seen.append(frame), genuine(self, frame))[1])
    host.predict(tmp_path / "scores.csv", node=ALLOWED)
    assert {frame.kind for frame in seen} == {"predict", "finish"}
    assert {name for frame in seen for name in (*frame.fields, *frame.tensors)} == {"count", "rows"}


def test_new_rows_are_scored_where_the_owner_names_them(host, tmp_path, monkeypatch):
    ids = [f"q{number:03}" for number in range(90)]
    write_files(tmp_path / "new", ids, seed=5)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(PartyError, match="new data is to be scored, and party 'shop' names none: predict-data='PATH'"):
        host.predict(tmp_path / "scores.csv", node=ALLOWED, data=tmp_path / "new" / "bank.csv")
    node = {**ALLOWED, "predict-data": "~/new/shop.csv"}
    host.predict(tmp_path / "scores.csv", node=node, data=tmp_path / "new" / "bank.csv")
    found = pa_csv.read_csv(tmp_path / "scores.csv")
    assert found["id"].to_pylist() == ids
    labels = pa_csv.read_csv(tmp_path / "new" / "bank.csv")["label"].to_numpy()
    assert leak_auc(found["score"].to_numpy(), labels) > 0.8


@pytest.mark.parametrize("transport", ["stream", "messages"])
def test_what_is_wrong_with_a_partys_new_rows_is_said_on_its_host_alone(host, tmp_path, caplog, transport):
    ids = [f"q{number:03}" for number in range(9)]
    write_files(tmp_path / "new", ids)
    path = tmp_path / "new" / "shop.csv"
    header, *rows = path.read_text().splitlines()
    path.write_text("\n".join([header, *rows[:6], "q006,salary 9000 see Dr. Weiss,red", *rows[7:], ""]))
    node = {**ALLOWED, "predict-data": str(path)}
    with pytest.raises(PartyError) as caught:
        host.predict(tmp_path / "scores.csv", node=node, data=tmp_path / "new" / "bank.csv", transport=transport)
    words = "party 'shop' could not take part in the prediction; the log of its host says why"
    assert str(caught.value).endswith(f"could not open its session: WithheldError: {words}")
    assert (
        "row 7 below the header holds 'salary 9000 see Dr. Weiss', a finite number (decimal point) is needed"
        in caplog.text
    )
    assert str(path) in caplog.text


@pytest.mark.parametrize("transport", ["stream", "messages"])
def test_an_error_in_the_middle_of_a_prediction_is_logged_on_the_partys_host_alone(
    host, tmp_path, monkeypatch, caplog, transport
):
    def failing(self, frame):
        raise OSError(5, "cannot be read", str(host.root / "parts" / "shop" / "numeric.npy"))

    monkeypatch.setattr("flower_vfl.parties.predictor.Predictor._requested_rows", failing)
    with pytest.raises(PartyError, match="'shop' could not take part in the prediction; the log of its") as caught:
        host.predict(tmp_path / "scores.csv", node=ALLOWED, transport=transport)
    assert "cannot be read" not in str(caught.value)
    assert "cannot be read: '" in caplog.text


@pytest.mark.parametrize("field", ["weights", "rows", "count"])
def test_control_characters_in_the_values_of_a_party_are_escaped(host, tmp_path, monkeypatch, caplog, field):
    from flower_vfl.parties.predictor import Predictor
    from flower_vfl.protocol.frame import Frame, Kind

    genuine = Predictor.hello
    lie = {field: "\x1b[2J\nINFO fine"}
    monkeypatch.setattr(Predictor, "hello", lambda self: Frame(Kind.HELLO, fields={**genuine(self).fields, **lie}))
    with pytest.raises(PartyError, match="party 'shop' has other ") as caught:
        host.predict(tmp_path / "scores.csv", node=ALLOWED)
    logged = [record.getMessage() for record in caplog.records]
    assert any(r"\x1b[2J\nINFO" in words for words in (str(caught.value), *logged))
    assert all(map(str.isprintable, (str(caught.value), *logged)))


def test_scores_are_for_their_owner_alone(host, tmp_path):
    host.predict(tmp_path / "scores.csv", node=ALLOWED)
    assert (tmp_path / "scores.csv").stat().st_mode & 0o077 == 0


def test_new_rows_of_other_people_are_refused(host, tmp_path):
    write_files(tmp_path / "new", [f"q{number:03}" for number in range(90)])
    write_files(tmp_path / "others", [f"r{number:03}" for number in range(90)])
    node = {**ALLOWED, "predict-data": str(tmp_path / "others" / "shop.csv")}
    with pytest.raises(PartyError, match=r"has other rows: 90 .* align them first"):
        host.predict(tmp_path / "scores.csv", node=node, data=tmp_path / "new" / "bank.csv")


def test_a_party_that_lost_its_weights_says_so(host, tmp_path):
    for path in (tmp_path / "state").rglob("shop.safetensors"):
        path.unlink()
    with pytest.raises(PartyError, match="party 'shop' has no weights of this training"):
        host.predict(tmp_path / "scores.csv", node=ALLOWED)


def test_a_party_whose_weights_are_of_another_training_says_so(host, tmp_path):
    from flower_vfl.apps.model import load_model
    from tests.apps.test_model import rewrite

    for path in (tmp_path / "state").rglob("shop.safetensors"):
        rewrite(path, path, lambda card: card.update(session="another"))
        assert load_model(path)
    with pytest.raises(PartyError, match=r"no weights of this training \(session"):
        host.predict(tmp_path / "scores.csv", node=ALLOWED)


def test_a_node_of_somebody_else_is_not_asked_for_anything(host, tmp_path):
    other = {"party": "other", "data-path": str(host.root / "parts" / "shop")}
    run_config = {"job": "predict", "predict-run": str(host.run), "predict-out": str(tmp_path / "scores.csv")}
    start([other, {**host.node, **ALLOWED}], {**run_config, "transport-kind": "stream"})
    assert (tmp_path / "scores.csv").is_file()


def test_unreadable_weights_of_another_training_are_skipped_and_logged_where_none_fit(host, tmp_path, caplog):
    from tests.apps.test_model import rewrite

    (source,) = {path.parent.parent for path in (tmp_path / "state").rglob("shop.safetensors")}
    old = source.with_name("0" * 32 + "-shop")
    shutil.copytree(source, old)
    rewrite(model_path(old, "shop"), model_path(old, "shop"), lambda card: card.update(version="0.0.9", session="old"))
    host.predict(tmp_path / "scores.csv", node=ALLOWED)
    model_path(source, "shop").unlink()
    with pytest.raises(PartyError, match=r"no weights of this training .*; the log of its host lists the") as caught:
        host.predict(tmp_path / "more.csv", node=ALLOWED)
    assert str(tmp_path) not in str(caught.value)
    assert "was written by flower-vfl 0.0.9" in caplog.text
    assert str(tmp_path / "state") in caplog.text


def test_a_folder_that_the_owner_named_is_where_weights_are_looked_for(host, tmp_path):
    (source,) = {path.parent.parent for path in (tmp_path / "state").rglob("shop.safetensors")}
    shutil.move(source, tmp_path / "own")
    host.predict(tmp_path / "scores.csv", node={**ALLOWED, "out": str(tmp_path / "own")})
    assert (tmp_path / "scores.csv").is_file()


def test_a_second_training_in_the_same_folder_keeps_the_model_of_the_first(host, tmp_path, caplog):
    caplog.set_level("INFO")
    node = {**host.node, **ALLOWED, "out": str(tmp_path / "own")}
    config = toy_config(data={"name": "files"}, transport={"kind": "stream"}, training={"epochs": 1})
    runs = [tmp_path / name for name in ("first", "second", "third")]
    for run in runs:
        start([node], {**to_run_config(config), "out": str(run)})
    assert f"the weights of an earlier training are in {tmp_path / 'own' / 'earlier' / '2'}" in caplog.text
    for run in runs:
        start(
            [node], {"job": "predict", "predict-run": str(run), "predict-out": f"{run}.csv", "transport-kind": "stream"}
        )
        assert pa_csv.read_csv(f"{run}.csv")["id"].to_pylist() == open_dataset(host.root / "whole").ids("test")


@pytest.mark.parametrize("given", ["many", -1, 1.5, True])
def test_a_limit_that_is_no_number_of_rows_is_refused(given):
    with pytest.raises(ConfigError, match="must be a whole number"):
        Quota.of({"predict-rows-per-day": given}, "a")


def test_another_day_is_another_count(tmp_path):
    day = ["2030-01-01"]
    quota = Quota(tmp_path / "counts.json", "a", 10, lambda: day[0])
    quota.take(10)
    with pytest.raises(PermissionDeniedError, match="0 of them are left today; 1 were asked for"):
        quota.take(1)
    day[0] = "2030-01-02"
    quota.take(10)
    assert json.loads((tmp_path / "counts.json").read_text()) == {"2030-01-01": 10, "2030-01-02": 10}


def test_runs_at_the_same_time_share_one_count(tmp_path):
    refused = []

    def take(_):
        quota = Quota(tmp_path / "counts.json", "a", 100, lambda: "today")
        for _ in range(10):
            try:
                quota.take(3)
            except PermissionDeniedError:
                refused.append(1)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(take, range(6)))
    assert json.loads((tmp_path / "counts.json").read_text()) == {"today": 99}
    assert len(refused) == 60 - 33


@pytest.mark.parametrize("content", ["[1]", "{", '{"today": "x"}'])
def test_no_rows_are_answered_where_counts_cannot_be_read(tmp_path, content):
    (tmp_path / "counts.json").write_text(content)
    with pytest.raises(DataError, match="holds no counts"):
        Quota(tmp_path / "counts.json", "a", 100).take(1)


def test_frames_without_an_offer_are_refused():
    handlers = prediction_client.PredictionClient(lambda *_: None, lambda _: None)
    context = Context(run_id=1, node_id=2, node_config={}, state=RecordDict(), run_config={})
    with pytest.raises(
        prediction_client.ProtocolError, match=r"frames came before an offer, .* lost its session: start the run again"
    ):
        handlers.frames(Message(RecordDict(), 2, "query.frames"), context)


@pytest.mark.parametrize("asked", ["-3", "x", 7])
def test_an_offer_must_say_how_many_rows_are_asked_for(asked):
    offer = ConfigRecord({"kind": "stream", "session": "s", "asked": asked, "data": "", "training": "t"})
    with pytest.raises((prediction_client.ProtocolError, DataError)):
        prediction_client._whole_number(offer, "asked")


def test_scores_can_be_parquet(host, tmp_path):
    host.predict(tmp_path / "scores.parquet", node=ALLOWED)
    assert pq.read_schema(tmp_path / "scores.parquet").names == ["id", "score"]
