"""Reaching a Ray cluster, and what it has room for."""

import socket
import tempfile
from pathlib import Path

import pytest

from flower_vfl.errors import SetupError
from flower_vfl.simulations import cluster
from flower_vfl.simulations.cluster import Cluster, check_reachable


@pytest.mark.parametrize("address", ["nonsense", "host:", ":6379", "host:99999", "a b:1", "http://host:1"])
def test_what_is_no_address_is_refused_at_once(address):
    with pytest.raises(SetupError, match="is no address of a Ray cluster"):
        check_reachable(address)


def test_the_address_of_rays_client_is_refused():
    with pytest.raises(SetupError, match="--address auto"):
        check_reachable("ray://127.0.0.1:10001")


def test_a_port_at_which_nobody_listens_is_refused_in_words():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(SetupError, match=f"no Ray cluster answers at 127.0.0.1:{port}"):
        check_reachable(f"127.0.0.1:{port}")


def test_something_that_listens_and_says_nothing_is_given_up(monkeypatch):
    monkeypatch.setattr(cluster, "_JOIN_SECONDS", 0.5)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with pytest.raises(SetupError, match=r"cannot be joined from here: no answer in"):
            check_reachable(f"127.0.0.1:{silent.getsockname()[1]}")


@pytest.mark.parametrize(
    ("nodes", "cpus", "gpus", "places"),
    [
        (((2.0, 0.0),), 1.0, 0.0, 2),
        (((2.0, 0.0), (7.0, 0.0)), 2.0, 0.0, 4),
        (((16.0, 1.0), (16.0, 0.0)), 1.0, 0.25, 4),
        (((2.0, 4.0),), 1.0, 0.25, 2),
        (((16.0, 1.0),), 1.0, 0.1, 10),
    ],
)
def test_trials_share_processors_and_cards_of_every_node(nodes, cpus, gpus, places):
    assert Cluster(nodes).places(cpus, gpus) == places


def test_a_trial_that_fits_no_node_is_refused_with_what_there_is():
    with pytest.raises(SetupError, match="8 processors and 0 cards, and no machine has as much: 2 processors"):
        Cluster(((2.0, 0.0), (4.0, 0.0))).places(8.0, 0.0)


def test_what_a_killed_ray_has_left_is_removed_and_nothing_else(tmp_path):
    note = tmp_path / "note"
    left, other, link = tmp_path / "fvfl-left", tmp_path / "other", tmp_path / "fvfl-link"
    for folder in (left, other):
        folder.mkdir()
    link.symlink_to(other)
    deeper = other / "fvfl-deeper"
    deeper.mkdir()
    for path in (other, link, deeper, tmp_path / "fvfl-left" / ".." / "other", left):
        note.write_text(str(path))
        cluster._remove_left(note, tmp_path)
    assert not left.exists()
    assert other.is_dir()
    assert link.is_symlink()
    assert deeper.is_dir()
    cluster._remove_left(tmp_path / "none", tmp_path)


@pytest.mark.parametrize("length", [25, 26, 60])
def test_the_paths_of_rays_sockets_are_short_enough_wherever_temporary_files_go(length, monkeypatch):
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="t" * (length - 13)) as usual:
        assert len(usual) == length
        monkeypatch.setattr(tempfile, "tempdir", usual)
        folder = cluster.make_files()
        try:
            assert (Path(folder).parent == Path(usual)) == (length == 25)
            assert len(f"{folder}/ray/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store") <= 107
        finally:
            Path(folder).rmdir()
