import pytest

from flower_vfl import build_config, run
from tests.faults.common import ATTACKER_EPOCHS, setup


@pytest.fixture(autouse=True)
def attackers_train_briefly(monkeypatch):
    monkeypatch.setattr("flower_vfl.attacks.embedding.model_completion.EPOCHS", ATTACKER_EPOCHS)


@pytest.fixture(scope="session")
def left_alone(tmp_path_factory):
    """Runs that nobody disturbed, by transport."""
    made = {}

    def of(transport):
        if transport not in made:
            made[transport] = tmp_path_factory.mktemp("alone") / transport
            run(build_config(setup(transport)), out=made[transport])
        return made[transport]

    return of
