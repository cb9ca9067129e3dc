"""The generated reference has every public name, key, command and method."""

from __future__ import annotations

import json
import re
import sys
from fnmatch import fnmatchcase
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from flower_vfl import build_config, run
from flower_vfl.attacks import ATTACKS
from flower_vfl.config import leaf_paths, preset_names, sweep_names
from flower_vfl.registry import BUILT_IN
from flower_vfl.simulations.worth import compare_run
from flower_vfl.strategies import DEFENSE_METHODS, DEFENSES
from flower_vfl.tracking import STEPS

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(autouse=True)
def _extensions(monkeypatch):
    """Import from the folder of the site's extensions, and drop the imported modules."""
    monkeypatch.syspath_prepend(str(DOCS / "extensions"))
    yield
    for name in {path.stem for path in (DOCS / "extensions").glob("*.py")} & sys.modules.keys():
        del sys.modules[name]


def test_every_configuration_key_has_its_type_default_and_description():
    import configuration

    text = configuration.keys()
    found = re.findall(r"^````\{confval\} (\S+)\n:type: (.+)\n:default: '`(.+)`'\n\n(.+)\.$", text, re.MULTILINE)
    assert {key for key, *_ in found} == set(leaf_paths())
    assert all(all(facts) for facts in found)
    defaults = build_config({}).model_dump()
    for key, _, default, _ in found:
        value = defaults
        for part in key.split("."):
            value = value[part]
        assert json.loads(default) == value, key


def test_bounds_of_a_key_are_listed_and_the_value_for_auto_is_none_of_them():
    import configuration

    text = configuration.keys()
    entry = re.search(r"\{confval\} training\.patience\n.*?````", text, re.DOTALL)[0]
    assert ':type: whole number or "auto"' in entry
    assert "Allowed: at least 0." in entry
    assert "Allowed: at least 0, below 2^63." in re.search(r"\{confval\} seed\n.*?````", text, re.DOTALL)[0]
    assert "Allowed: above 0.5, at most 1.0." in re.search(r"\{confval\} attack\.max_leak\n.*?````", text, re.DOTALL)[0]


def test_every_command_and_every_option_is_there():
    import click
    import command_line

    text = command_line.commands()
    for path, command in command_line.found():
        part = re.search(rf"^## {re.escape(path)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
        assert part, path
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                assert all(f"{option}" in part[1] for option in parameter.opts), (path, parameter.name)
    assert {"flower-vfl run", "flower-vfl data prepare"} <= {path for path, _ in command_line.found()}


def test_brackets_in_a_help_text_are_no_html():
    import command_line

    text = command_line.commands()
    assert r"[default: runs/demo-\<time>]" in text
    outside = re.sub(r"^(```+)text\n.*?^\1$|`[^`\n]+`", "", text, flags=re.MULTILINE | re.DOTALL)
    assert re.findall(r"(?<!\\)<[a-z]+", outside) == []


def test_every_attack_says_what_it_sees_and_knows():
    import methods

    found = re.findall(r"^### (\w+)\n\n(.+?)(?=^##|\Z)", methods.attacks(), re.MULTILINE | re.DOTALL)
    assert {name for name, _ in found} == set(ATTACKS)
    for name, text in found:
        assert "\n- Sees: " in text
        assert "\n- Parameters: " in text
        knows = re.search(r"^- Knows besides: (.+)$", text, re.MULTILINE)[1]
        assert all(f"`{need}`" in knows for need in ATTACKS[name].needs)


def test_every_defense_says_what_it_changes_and_what_reads_it():
    import methods

    found = dict(re.findall(r"^## (\w+)\n\n(.+?)(?=^## |\Z)", methods.defenses(), re.MULTILINE | re.DOTALL))
    assert set(found) == set(DEFENSES)
    for listed in (one for one in DEFENSE_METHODS.listed() if one.source == BUILT_IN):
        assert "\n- Changes: " in found[listed.name]
        assert all(f"`{attack}`" in found[listed.name] for attack in listed.method.read_by)
        assert "strategy" not in re.search(r"^- Parameters: (.*)$", found[listed.name], re.MULTILINE)[1]


def test_formulas_of_docstrings_are_written_in_markdown(tmp_path):
    import api
    import methods

    attacks = methods.attacks()
    assert "```{math}\nd_i = x_{iT} - x_{i,T-1}\n```" in attacks
    assert "{math}`x_{it}`" in attacks
    for text in (attacks, methods.defenses(), *map(api.page, api.packages())):
        assert re.findall(r"(:math:`.*)|(\.\. math::.*)", text) == []


def test_every_preset_is_shown_whole():
    import presets

    text = presets.runs() + presets.sweeps()
    assert set(re.findall(r"^### (\S+)$", text, re.MULTILINE)) == {*preset_names(), *sweep_names()}


def test_every_public_module_has_a_place_and_every_public_name_a_description(tmp_path):
    import api

    api.write_pages(tmp_path)
    pages = {path.stem: path.read_text() for path in (tmp_path / api.FOLDER).glob("*.md")}
    assert {"flower_vfl", "flower_vfl.strategies.gradients", "flower_vfl.simulations.sweep"} <= set(pages)
    shown = [name for text in pages.values() for name in re.findall(r"^.. automodule:: (\S+)$", text, re.MULTILINE)]
    assert sorted(shown) == sorted(api.modules())
    assert {"flower_vfl.strategies.gradients.iso", "flower_vfl.simulations.sweep"} <= set(shown)
    listed = [name for text in pages.values() for name in re.findall(r"^(flower_vfl\.\S+)$", text, re.MULTILINE)]
    assert {"flower_vfl", *listed} == set(pages)
    for module in api.modules():
        for name in api.public_names(module):
            # autodoc leaves out names without a docstring
            assert getattr(sys.modules[module], name).__doc__, f"{module}.{name} has no docstring, and so no entry"


def test_pages_of_packages_that_are_gone_are_removed(tmp_path):
    import api

    old = tmp_path / api.FOLDER / "flower_vfl.gone.md"
    old.parent.mkdir(parents=True)
    old.write_text("# flower_vfl.gone")
    api.write_pages(tmp_path)
    assert not old.exists()


def described(key, known):
    """Return True if a key is described, by itself or by a pattern, in which `[]` is text and `*` is anything."""
    return any(fnmatchcase(key.replace("[]", "/"), pattern.replace("[]", "/")) for pattern in known)


TWO_CLASSES = {
    "data": {"name": "breast-cancer"},
    "training": {"epochs": 2, "batch_size": 128},
    "attack": {
        "names": ["norm", "remembered_direction", "model_completion", "joint_regression"],
        "max_leak": 0.999,
        "on_leak": "warn",
    },
    "defenses": "marvell(s=4)",
    "baselines": "on",
}
SEVERAL_CLASSES = {
    "data": {"name": "digits"},
    "training": {"epochs": 1, "batch_size": 256},
    "attack": {"informed": 8192},
    "parties": {"colluding": ["left+right"]},
    "defenses": "iso(t=1)",
}


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(TWO_CLASSES, id="two classes"),
        pytest.param(SEVERAL_CLASSES, id="several classes and a group", marks=pytest.mark.slow),
    ],
)
def test_every_key_of_a_result_and_every_metric_of_its_steps_is_described(config, tmp_path):
    import results

    run(build_config(config), out=tmp_path)
    summary = compare_run(build_config(config), tmp_path)
    keys = set(results.keys_of(summary))
    assert {key for key in keys if not described(key, results.KEYS)} == set()
    assert len(keys) > 100
    table = pq.read_table(tmp_path / STEPS)
    metrics = set(table["metric"].to_pylist())
    assert {metric for metric in metrics if not described(metric, results.METRICS)} == set()
    assert set(table.column_names) == set(results.COLUMNS)


def test_blocks_on_the_pages_name_what_is_generated():
    import reference

    named = set()
    for page in (DOCS / "reference").glob("*.md"):
        blocks = re.findall(r"\{generated\} (\S+)", page.read_text(encoding="utf8"))
        named |= set(blocks)
        text = reference.filled(page.read_text(encoding="utf8"))
        assert "{generated}" not in text, page.name
    assert named == set(reference.GENERATED)
