import pytest

from flower_vfl import build_config, run
from tests.faults.common import ATTACKER_EPOCHS, setup, setup_of_few


@pytest.fixture(autouse=True)
def attackers_train_briefly(monkeypatch):
    monkeypatch.setattr("flower_vfl.attacks.embedding.model_completion.MOST_EPOCHS", ATTACKER_EPOCHS)


@pytest.fixture(scope="session")
def undisturbed_run(tmp_path_factory):
    """Return a function of a transport that returns the folder of its undisturbed run."""
    return _runs(tmp_path_factory, setup)


@pytest.fixture(scope="session")
def undisturbed_run_of_few(tmp_path_factory):
    """Return a function of a transport that returns the folder of its undisturbed run with few attacks."""
    return _runs(tmp_path_factory, setup_of_few)


def _runs(tmp_path_factory, setup):
    folders = {}

    def of(transport):
        if transport not in folders:
            folders[transport] = tmp_path_factory.mktemp("alone") / transport
            run(build_config(setup(transport)), out=folders[transport])
        return folders[transport]

    return of
