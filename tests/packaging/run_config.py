"""Give pyproject.toml a key for each configuration option, as `flwr run` needs it.

``python -m tests.packaging.run_config`` writes the keys of the schema; existing values are kept.
"""

import tomllib

import tomli_w

from flower_vfl.config import Config, to_run_config
from tests.packaging.conftest import ROOT

FILE = ROOT / "pyproject.toml"
TABLE = "[tool.flwr.app.config]\n"
PREDICTIONS = (f"predict-{name}" for name in ("run", "out", "ids", "data", "overwrite"))
OF_THE_APP = ("preset", "job", *PREDICTIONS, "out", "resume")
"""Keys that are for the ServerApp and no part of a configuration."""


def written(text):
    """Return the text of pyproject.toml with all keys of the schema; a new one is empty and means "as the preset"."""
    before, table, rest = text.partition(TABLE)
    block, end, after = rest.partition("\n\n")
    values = tomllib.loads(block)
    keys = (*OF_THE_APP, *to_run_config(Config()))
    return before + table + tomli_w.dumps({key: values.get(key, "") for key in keys}).rstrip("\n") + end + after


if __name__ == "__main__":
    FILE.write_text(written(FILE.read_text(encoding="utf8")), encoding="utf8")
