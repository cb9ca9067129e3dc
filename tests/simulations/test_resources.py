"""Resources of each feature party by `--resources`, and the check that the cluster has them."""

import pytest

from flower_vfl.config import build_config
from flower_vfl.errors import ConfigError, SetupError
from flower_vfl.simulations.cluster import Cluster
from flower_vfl.simulations.flower_engine import check_devices, check_room, reachable
from flower_vfl.simulations.resources import Resources, read_resources

PARTIES = ["a", "left-half", "3"]


def test_by_default_every_party_has_a_processor():
    assert read_resources([], PARTIES) == (Resources(cpus=1.0, gpus=0.0, node=""),) * 3


def test_resources_of_one_party_override_those_of_all_in_any_order():
    given = read_resources(["3: cpus=4, node=10.0.0.7", "cpus=0.5,gpus=0.25", " left-half :gpus=2"], PARTIES)
    assert given == (
        Resources(cpus=0.5, gpus=0.25),
        Resources(cpus=0.5, gpus=2.0),
        Resources(cpus=4.0, gpus=0.25, node="10.0.0.7"),
    )


def test_an_address_with_colons_is_an_address():
    assert read_resources(["node=fe80::1"], ["a"])[0].bundle == {"CPU": 1.0, "node:fe80::1": 0.001}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is not understood"),
        ("cpus", "is not understood"),
        ("a cpus=1", "there is no such key"),
        ("b: cpus=1", r"no feature party is called 'b'; did you mean|no feature party is called 'b'; Allowed"),
        ("cpus=1, cpus=2", "'cpus' is given twice"),
        ("cpus=1, gpus", "'gpus' is no key=value"),
        ("cpu=1", "cpu: there is no such key; did you mean 'cpus'"),
        ("cpus=0", "cpus: must be above 0, given 0"),
        ("cpus=nan", "cpus"),
        ("gpus=-1", "gpus: must be at least 0"),
        ("gpus=1.5", "above 1 it must be a whole number"),
        ("cpus=many", "cpus: must be a number, given 'many'"),
    ],
)
def test_what_is_wrong_is_refused_in_words(text, words):
    with pytest.raises(ConfigError, match=words):
        read_resources([text], PARTIES)


@pytest.mark.parametrize(
    ("requested", "words"),
    [
        (["cpus=3"], "ask for 9 processors and 0 GPUs; there are 8 and 2"),
        (["gpus=0.75"], "ask for 3 processors and 2.25 GPUs; there are 8 and 2"),
        (["a: node=10.0.0.9"], r"node 10\.0\.0\.9, which is none of the cluster; there is 10\.0\.0\.1, 10\.0\.0\.2"),
    ],
)
def test_more_than_a_cluster_has_is_refused_before_anything_starts(requested, words):
    cluster = Cluster(((4.0, 0.0), (4.0, 2.0)), ("10.0.0.1", "10.0.0.2"), "10.0.0.1")
    check_room(cluster, read_resources(["cpus=2", "a: gpus=2, node=10.0.0.2"], PARTIES))
    with pytest.raises(SetupError, match=words):
        check_room(cluster, read_resources(requested, PARTIES))


def test_gpus_go_with_the_device():
    gpus, none = read_resources(["gpus=0.5"], PARTIES), read_resources([], PARTIES)
    on_gpu = build_config({"device": "cuda"})
    check_devices(on_gpu, gpus)
    check_devices(build_config({}), none)
    with pytest.raises(ConfigError, match="device is 'cpu'"):
        check_devices(build_config({}), gpus)
    with pytest.raises(ConfigError, match=r"not every party gets a GPU: --resources gpus=0\.25"):
        check_devices(on_gpu, read_resources(["a: gpus=1"], PARTIES))
    with pytest.raises(ConfigError, match="Ray chooses the GPU"):
        check_devices(build_config({"device": "cuda:1"}), gpus)


TWO = Cluster(((4.0, 0.0), (4.0, 0.0)), ("10.0.0.1", "10.0.0.2"), "10.0.0.1")
HERE = Cluster(((4.0, 0.0), (4.0, 0.0)), ("10.0.0.1", "10.0.0.1"), "10.0.0.1")


@pytest.mark.parametrize(
    ("transport", "cluster", "host"),
    [
        ({"kind": "stream"}, TWO, "10.0.0.1"),
        ({"kind": "stream"}, HERE, "127.0.0.1"),
        ({"kind": "stream"}, Cluster(((2.0, 0.0),)), "127.0.0.1"),
        ({"kind": "messages"}, TWO, "127.0.0.1"),
        ({"kind": "stream", "host": "10.0.0.77"}, TWO, "10.0.0.77"),
        ({"kind": "stream", "advertise": "label.example"}, TWO, "127.0.0.1"),
        ({"kind": "stream", "host": "0.0.0.0", "advertise": "label.example"}, TWO, "0.0.0.0"),
    ],
)
def test_the_label_party_listens_where_other_nodes_reach_it_and_only_where_there_are_some(transport, cluster, host):
    config = build_config({"transport": transport})
    assert reachable(config, cluster).transport == config.transport.model_copy(update={"host": host})
