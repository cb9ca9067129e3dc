"""On a host of its own a party does what its node config allows, whatever the run config names."""

import shutil
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pytest
from flwr.app import Context, RecordDict

from flower_vfl.apps import run
from flower_vfl.apps.client_app import make_client_app
from flower_vfl.apps.factories import open_data
from flower_vfl.apps.feature_party import build_feature_party
from flower_vfl.apps.node import DATA_VARIABLE, STEPPED, Node, with_data_of_this_host
from flower_vfl.apps.server_app import make_server_app
from flower_vfl.config import build_config, to_run_config
from flower_vfl.data.sources.catalog import DATASETS_VARIABLE, prepare
from flower_vfl.data.store.dataset import open_dataset
from flower_vfl.data.store.parts import write_part
from flower_vfl.errors import ConfigError, PartyError
from flower_vfl.parties.feature import FeatureParty
from flower_vfl.rng import Secret
from tests.grids import DeployedGrid
from tests.toys import toy_config

CONFIG = toy_config(
    data={"name": "synthetic"}, transport={"kind": "stream"}, training={"epochs": 1}, attack={"names": ["norm"]}
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The parent of a folder for each host, which holds its party's part alone; and the whole data set."""
    root = tmp_path_factory.mktemp("hosts")
    prepare("synthetic", out=root / "whole", options={"rows": 400, "test_rows": 80})
    dataset = open_dataset(root / "whole")
    for party in (*dataset.parties, dataset.label_party):
        if not (root / party).exists():
            write_part(root / "whole", party, root / party)
    return root, dataset


def deploy(nodes, label_folder, monkeypatch, tmp_path, config=CONFIG, grid=DeployedGrid, **changed):
    monkeypatch.setenv("FLOWER_VFL_STATE", str(tmp_path / "state"))
    monkeypatch.setenv(DATA_VARIABLE, str(label_folder))
    run_config = {**to_run_config(config), **changed}
    results = []
    server = make_server_app(on_result=results.append)
    server(
        grid(nodes, run_config),
        Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=run_config),
    )
    return results[0]


def nodes_of(folders, **changes):
    root, dataset = folders
    parties = [party for party in dataset.parties if party != dataset.label_party]
    return [{"party": party, "data-path": str(root / party), "train-epochs": 9, **changes} for party in parties]


def test_hosts_that_hold_only_their_own_parts_train_to_the_weights_of_the_local_run(folders, monkeypatch, tmp_path):
    root, dataset = folders

    def with_the_secret_of_a_simulation(name, config, data, secret, **more):
        return build_feature_party(name, config, data, Secret.for_simulation(config.seed, name), **more)

    monkeypatch.setattr("flower_vfl.apps.training_client.build_feature_party", with_the_secret_of_a_simulation)
    monkeypatch.setattr(Secret, "of_this_host", lambda _: Secret.for_simulation(CONFIG.seed, "label"))
    deployed = deploy(nodes_of(folders), root / dataset.label_party, monkeypatch, tmp_path)
    local = run(CONFIG.model_copy(update={"data": CONFIG.data.model_copy(update={"path": str(root / "whole")})}))
    assert deployed.summary["weights"] == local.summary["weights"]
    assert deployed.summary["utility"] == local.summary["utility"]


def test_parties_that_prepared_their_own_files_alone_train_together(monkeypatch, tmp_path):
    rng = np.random.default_rng(0)
    ids, label = [f"p{row}" for row in range(240)], rng.integers(0, 2, 240)
    columns = {"shop": ["age"], "club": ["wage"], "bank": ["savings"]}
    for party, names in columns.items():
        table = {"id": ids, **{name: rng.normal(size=240) + label for name in names}}
        table |= {"paid": label} if party == "bank" else {}
        pa_csv.write_csv(pa.table(table), tmp_path / f"{party}.csv")
        own = {f"files.{party}": str(tmp_path / f"{party}.csv"), "label": "paid" if party == "bank" else ""}
        assert prepare("files", out=tmp_path / party, options=own).parties == (party,)
    config = toy_config(
        data={"name": "files"}, parties={"features": ["shop", "club"]}, training={"epochs": 1}, attack={"names": []}
    )
    nodes = [{"party": party, "data-path": str(tmp_path / party), "train-epochs": 1} for party in ("shop", "club")]
    done = deploy(nodes, tmp_path / "bank", monkeypatch, tmp_path, config)
    assert set(done.summary["weights"]) == {"label", "shop", "club"}
    assert done.summary["status"] == "finished"


def test_the_data_of_a_node_is_its_owners_whatever_the_run_config_names():
    hostile = {"name": "files", "path": "/etc", "options": {"files": {"a": "/etc/passwd"}}}
    view = Node.of({"party": "a", "data-path": "/own"}).view(toy_config(data=hostile))
    assert (view.data.path, view.data.options) == ("/own", {})


def test_a_tilde_in_a_node_config_is_the_owners_home(folders, monkeypatch, tmp_path):
    root, dataset = folders
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    nodes = [{**node, "out": f"~/{node['party']}"} for node in nodes_of(folders)]
    deploy(nodes, root / dataset.label_party, monkeypatch, tmp_path)
    for node in nodes:
        assert (tmp_path / "home" / node["party"] / "weights" / f"{node['party']}.safetensors").is_file()
    assert not (tmp_path / "~").exists()


def test_a_node_that_names_no_data_opens_none(folders, monkeypatch, tmp_path):
    root, dataset = folders
    nodes = [{key: value for key, value in node.items() if key != "data-path"} for node in nodes_of(folders)]
    with pytest.raises(PartyError, match=r"names no data: start its SuperNode with --node-config"):
        deploy(nodes, root / dataset.label_party, monkeypatch, tmp_path)


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"attack": {"names": ["norm"], "positives": [7]}}, "classes of this data are 0 to 1"),
        ({"defenses": [{"name": "marvel"}]}, "did you mean 'marvell'"),
    ],
    ids=["attack", "defense"],
)
def test_nodes_learn_that_the_label_party_failed_and_nothing_of_its_data(
    section, words, folders, monkeypatch, tmp_path
):
    root, dataset = folders
    config = toy_config(data={"name": "synthetic"}, transport={"kind": "stream"}, **section)
    grids, out = [], tmp_path / "out"

    def grid(nodes, run_config):
        grids.append(DeployedGrid(nodes, run_config))
        return grids[0]

    with pytest.raises(ConfigError, match=words):
        deploy(nodes_of(folders), root / dataset.label_party, monkeypatch, tmp_path, config, grid, out=str(out))
    grids[0].join(5)
    assert not any(thread.is_alive() for thread in grids[0]._threads)
    expected = "the label party ended the session: it failed before training began; the reason is in its own log"
    assert [str(failure) for failure in grids[0].failures] == [expected] * len(nodes_of(folders))
    assert not out.exists()


@pytest.mark.slow
def test_a_node_of_a_party_that_the_run_does_not_have_is_refused(folders, monkeypatch, tmp_path):
    nodes = [*nodes_of(folders), {**nodes_of(folders)[0], "party": "x"}]
    with pytest.raises(PartyError, match=r"this node says it is party 'x'; the run has .* or stop this SuperNode"):
        deploy(nodes, folders[0] / folders[1].label_party, monkeypatch, tmp_path)


def test_a_node_opens_nothing_but_prepared_data(folders, monkeypatch, tmp_path):
    root, dataset = folders
    nodes = [{**node, "data-path": str(tmp_path)} for node in nodes_of(folders)]
    with pytest.raises(PartyError, match=r"is no prepared data \(there is no manifest.json in it"):
        deploy(nodes, root / dataset.label_party, monkeypatch, tmp_path)


@pytest.mark.parametrize("kind", ["stream", "messages"])
@pytest.mark.parametrize("when", ["opens", "trains"])
def test_what_goes_wrong_at_a_party_is_said_on_its_host_alone(when, kind, folders, monkeypatch, tmp_path, caplog):
    root, dataset = folders
    nodes = nodes_of(folders)
    if when == "opens":
        shutil.copytree(root / nodes[0]["party"], tmp_path / "copy")
        (tmp_path / "copy" / nodes[0]["party"] / "party.json").write_text("a row of salaries")
        nodes[0]["data-path"] = str(tmp_path / "copy")
    else:
        monkeypatch.setattr(FeatureParty, "_step", lambda self, frame: {}["the salary of n6"])
    config = CONFIG.model_copy(update={"transport": CONFIG.transport.model_copy(update={"kind": kind})})
    with pytest.raises(PartyError, match=r"could not take part in the training; the log of its host says") as caught:
        deploy(nodes, root / dataset.label_party, monkeypatch, tmp_path, config)
    words = str(tmp_path / "copy") if when == "opens" else "the salary of n6"
    assert words not in str(caught.value)
    assert words in caplog.text


def test_a_path_in_the_run_config_of_a_deployment_is_refused(folders, monkeypatch, tmp_path):
    root, dataset = folders
    with pytest.raises(ConfigError, match=f"reaches every party; set data.path to '' and name .* in {DATA_VARIABLE}"):
        deploy(nodes_of(folders), root, monkeypatch, tmp_path, **{"data-path": str(root / dataset.label_party)})


def test_without_the_variable_the_label_party_opens_what_the_data_sets_package_holds(monkeypatch):
    monkeypatch.delenv(DATA_VARIABLE, raising=False)
    assert with_data_of_this_host(CONFIG) == CONFIG


def test_a_label_party_opens_its_own_folder_or_the_one_of_that_name_among_all_data_sets(folders, monkeypatch):
    root, dataset = folders
    own, all_sets = root / dataset.label_party, root / "sets"
    prepare("synthetic", out=all_sets / "synthetic", options={"rows": 60, "test_rows": 20})
    monkeypatch.setenv(DATASETS_VARIABLE, str(all_sets))
    monkeypatch.delenv(DATA_VARIABLE, raising=False)
    assert open_data(with_data_of_this_host(CONFIG)).folder == all_sets / "synthetic"
    monkeypatch.setenv(DATA_VARIABLE, str(own))
    assert open_data(with_data_of_this_host(CONFIG)).folder == own


def test_only_an_attacker_attacks_and_its_owner_decides_that():
    assert Node.of({"party": "a"}).view(CONFIG).attack.names == []
    assert Node.of({"party": "a", "role": "feature"}).view(CONFIG).attack.names == []
    assert Node.of({"party": "a", "role": "attacker"}).view(CONFIG).attack.names == CONFIG.attack.names


@pytest.fixture
def stepped():
    token = STEPPED.set(True)
    yield
    STEPPED.reset(token)


def test_a_simulated_node_does_what_the_run_config_says(stepped):
    assert Node.of({"partition-id": 0}).view(CONFIG) == CONFIG


class Claiming(DeployedGrid):
    """The grid of a label party whose offers claim to be those of a simulation."""

    opened: ClassVar[list[str]] = []

    def __init__(self, nodes, run_config):
        super().__init__(nodes, run_config, make_client_app(data=lambda config: self.opened.append(config.data.path)))

    def push_messages(self, messages):
        messages = list(messages)
        for message in messages:
            message.content.config_records["offer"]["simulation"] = True
        return super().push_messages(messages)


@pytest.mark.parametrize("node", [{}, {"partition-id": 0, "num-partitions": 2}])
def test_a_node_whose_owner_named_no_party_opens_nothing_whatever_the_label_party_claims(
    node, folders, monkeypatch, tmp_path
):
    nodes = [node for _ in nodes_of(folders)]
    with pytest.raises(PartyError, match="this node has no party: start its SuperNode with --node-config"):
        deploy(nodes, folders[0] / folders[1].label_party, monkeypatch, tmp_path, grid=Claiming)
    assert Claiming.opened == []


def test_a_simulated_node_takes_no_part_in_a_deployment(stepped):
    with pytest.raises(ConfigError, match="this node is simulated, and the label party is not"):
        Node.of({"partition-id": 0}).simulated_as(("a", "b"), offered=False)
    assert [Node.of({"partition-id": i}).simulated_as(("a", "b"), offered=True) for i in range(3)] == ["a", "b", ""]


def test_an_unknown_role_is_refused_with_the_known_ones():
    with pytest.raises(ConfigError, match=r"role is 'label'; --node-config allows role='feature' or role='attacker'"):
        Node.of({"party": "a", "role": "label"})


def test_a_party_that_does_not_attack_keeps_a_configuration_that_can_be_read_again():
    limited = build_config({**CONFIG.model_dump(), "attack": {"names": ["norm"], "max_leak": 0.9}})
    seen = Node.of({"party": "a", "data-path": "/data"}).view(limited)
    assert build_config(seen.model_dump()) == seen
    assert Node.of({"party": "a", "role": "attacker"}).view(limited).attack.max_leak == 0.9
