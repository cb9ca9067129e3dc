"""The measured headline of the recommended defense, studies/headline/study.py, on the pages that show it."""

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


def test_a_first_configuration_says_what_was_measured_behind_the_defense_that_it_shows(tmp_path):
    table, out = tmp_path / "bank.csv", tmp_path / "run.toml"
    table.write_text("id,age,paid\n1,30,0\n", encoding="utf-8")
    write_first_config({"bank": table}, out, id_column="id", label="paid", ask=lambda *_: "")
    shown = out.read_text(encoding="utf-8")
    runs = json.loads((PAGES / "headline.json").read_text(encoding="utf-8"))["headline"]
    reached, chance = (sum(one["practical"][key] for one in runs) / len(runs) for key in ("reached", "null"))
    assert f"reads {reached:.2f} behind this one" in shown
    assert f"guessing reaches {chance:.2f}" in shown


def test_the_sentence_says_means_over_the_seeds_and_how_many_runs_leak():
    from studies.headline import study as headline

    def run(reached, informed, status):
        practical = {"label": "norm", "reached": reached, "null": 0.55}
        return {"status": status, "test_auc": 0.9, "practical": practical, "informed": {"reached": informed}}

    found = " ".join(headline.sentence([run(0.6, 0.7, "leaks"), run(0.8, 0.9, "no leak found")]).split())
    assert (
        "`norm`, has a leak AUC of 0.700 \u00b1 1.271 (q95 of single steps; chance level 0.550)" in found
    )  # t(1) = 12.706, s = 0.1414
    assert "The informed reader has 0.800 \u00b1 1.271 (0.700 to 0.900)" in found
    assert "a leak in 1 of 2 runs" in found
