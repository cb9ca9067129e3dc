"""The measured headline of the recommended defense, studies/headline/study.py, and the pages that show it."""

import json

import pytest

from flower_vfl.apps.first_config import write_first_config
from tests.studies.conftest import PAGES

pytestmark = pytest.mark.usefixtures("beside_the_studies")


def test_every_page_shows_the_numbers_that_were_measured():
    from studies.headline import study as headline

    numbers = json.loads((PAGES / "headline.json").read_text(encoding="utf-8"))
    shown = headline.pages(numbers)
    for path, text in shown.items():
        assert path.read_text(encoding="utf-8") == text, path.name
    assert sum("<!-- begin headline -->" in text for text in shown.values()) >= 8
    assert "<!-- begin conditional -->" in shown[headline.ROOT / "docs" / "methods" / "certificate.md"]


def test_a_first_configuration_has_the_measured_leak_of_the_defense_that_it_shows(tmp_path):
    tables, out = {name: tmp_path / f"{name}.csv" for name in ("bank", "shop")}, tmp_path / "run.toml"
    tables["bank"].write_text("id,age,paid\n1,30,0\n", encoding="utf-8")
    tables["shop"].write_text("id,spent\n1,7\n", encoding="utf-8")
    write_first_config(tables, out, id_column="id", label="paid", ask=lambda *_: "")
    shown = out.read_text(encoding="utf-8")
    numbers = json.loads((PAGES / "headline.json").read_text(encoding="utf-8"))["headline"]
    recommended, runs = next(iter(numbers.items()))
    assert f'# name = "{recommended.partition("(")[0]}"' in shown
    both, alone = (sum(one["together"][key] for one in runs) / len(runs) for key in ("mean", "baseline"))
    assert f"an AUC of {both:.2f} behind this one, and\n# {alone:.2f} without any gradient" in shown


def test_the_table_has_means_over_the_seeds_of_each_defense():
    from studies.headline import study as headline

    def run(reached, informed, both):
        practical = {"label": "norm", "reached": reached, "null": 0.55}
        together = {"mean": both, "baseline": 0.5}
        return {"test_auc": 0.9, "practical": practical, "informed": {"reached": informed}, "together": together}

    found = headline.headline_table({name: [run(0.6, 0.7, 0.8), run(0.8, 0.9, 0.8)] for name in headline.COMPARED})
    first, second = found.splitlines()[2:4]
    cells = "`norm` 0.700 \u00b1 1.271 (guessing 0.55) | 0.800 \u00b1 1.271 | 0.500 \u00b1 0.000 | 0.800 \u00b1 0.000 |"
    assert (
        first == f"| `local_head(epsilon=1)`, pre-trained | 0.9000 \u00b1 0.0000 | {cells}"
    )  # t(1) = 12.706, s = 0.1414
    assert second == f"| `marvell_full(s=4)` | 0.9000 \u00b1 0.0000 | {cells}"
    assert "seeds 0 to 1" in " ".join(found.split())
