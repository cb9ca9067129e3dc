"""The configuration round-trips, and its errors name the key, the given value and the allowed ones."""

import json
import math
import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flower_vfl.config import (
    Config,
    build_config,
    from_run_config,
    leaf_paths,
    load_config,
    preset_names,
    to_run_config,
    to_toml,
)
from flower_vfl.config.parsing import parse_assignments
from flower_vfl.errors import ConfigError

PARTY = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,8}", fullmatch=True)
NUMBER = st.floats(allow_nan=False, allow_infinity=False)
TEXT = st.text(st.characters(codec="utf-8"))
PLAIN = st.recursive(
    TEXT | st.integers() | NUMBER | st.booleans(), lambda inner: st.lists(inner, max_size=3), max_leaves=4
)
WIDTHS = st.lists(st.integers(1, 10**6), max_size=4)


def table(required=None, **optional):
    return st.fixed_dictionaries(required or {}, optional=optional)


@st.composite
def configs(draw):
    features = draw(st.lists(PARTY, max_size=4, unique=True))
    kind = draw(st.sampled_from(["inproc", "stream", "messages"]))
    values = {
        "seed": draw(st.integers(0, 2**63 - 1)),
        "schedule_seed": draw(st.integers(-1, 2**63 - 1)),
        "device": draw(st.sampled_from(["cpu", "cuda", "cuda:3"])),
        "sinks": draw(st.lists(st.sampled_from(["tensorboard", "wandb", "mlflow"]), max_size=3)),
        "data": draw(table(name=st.text(min_size=1), path=TEXT, options=st.dictionaries(TEXT, PLAIN, max_size=3))),
        "parties": {
            "features": features,
            "label_features": draw(st.booleans()),
            "attackers": draw(st.lists(st.sampled_from(features), unique=True)) if features else [],
            "colluding": draw(st.sampled_from([["all"], [], ["+".join(features)] if len(features) > 1 else []])),
        },
        "model": draw(table(cut=st.integers(1, 65536), bottom=WIDTHS, top=WIDTHS, dropout=st.floats(0, 0.99))),
        "training": draw(
            table(
                learning_rate=st.floats(0, exclude_min=True, allow_infinity=False),
                validation=st.floats(0.01, 0.99),
                patience=st.integers(0, 9),
                optimizer=st.sampled_from(["adam", "adamw", "sgd"]),
            )
        ),
        "attack": draw(table({"names": st.lists(TEXT, min_size=1)}, max_leak=st.floats(0.6, 1), audit=st.booleans())),
        "transport": {
            "kind": kind,
            "wire_dtype": draw(st.sampled_from(["exact", "float16", "bfloat16"])) if kind != "inproc" else "exact",
            **draw(table(host=st.text(min_size=1), advertise=TEXT, port=st.integers(0, 65535))),
        },
        "defenses": draw(st.lists(table({"name": TEXT}, t=NUMBER, scope=TEXT, deep=PLAIN), max_size=3)),
    }
    return build_config(values)


@given(configs())
@settings(max_examples=150)
def test_flowers_run_config_gives_the_configuration_back(config):
    flat = to_run_config(config)
    assert all(isinstance(value, str | int | float | bool) for value in flat.values())
    assert from_run_config(flat) == config


@given(configs())
@settings(max_examples=100)
def test_toml_gives_the_configuration_back(config):
    assert build_config(tomllib.loads(to_toml(config))) == config


def test_a_configuration_file_gives_the_configuration_back(tmp_path):
    config = load_config("census", {"training.epochs": "2", "data.path": 'a "b"\\ü', "defenses": "iso(t=5.0)"})
    path = tmp_path / "run.toml"
    path.write_text(to_toml(config), encoding="utf8")
    assert load_config(str(path)) == config


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_loads_and_names_its_data(name):
    assert load_config(name).data.name


def test_there_is_a_census_preset():
    assert "census" in preset_names()
    assert load_config("census").data.name == "census-income"


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path):
    (tmp_path / "run.toml").write_text("seed = 7\n", encoding="utf-8-sig")
    assert load_config(str(tmp_path / "run.toml")).seed == 7


def test_a_run_config_names_a_preset_and_no_file_of_the_host_that_reads_it(tmp_path, monkeypatch):
    (tmp_path / "run.toml").write_text("seed = 7\n")
    (tmp_path / "census").mkdir()
    (tmp_path / "census" / "manifest.json").write_text('{"name": "digits"}')
    monkeypatch.chdir(tmp_path)
    for name in ("run.toml", str(tmp_path / "run.toml"), str(tmp_path / "census"), "../census", "none.toml"):
        with pytest.raises(ConfigError, match=r"preset is '.*'; .*it is the name of a preset and no path"):
            from_run_config({"preset": name})
    assert from_run_config({"preset": "census"}).data.name == "census-income"


def test_an_empty_string_in_the_run_config_leaves_what_the_preset_says():
    config = from_run_config({"preset": "census", "training-epochs": "", "model-cut": 5, "out": "somewhere"})
    assert config.training.epochs == load_config("census").training.epochs
    assert config.model.cut == 5


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("training.learning_rat", "training.learning_rate"),
        ("training-batchsize", "training.batch_size"),
        ("defense", "defenses"),
        ("sead", "seed"),
    ],
)
def test_an_unknown_key_gives_the_nearest_name_and_those_near_it(given, meant):
    with pytest.raises(ConfigError) as caught:
        build_config({}, {given: "1"})
    assert f"no configuration key {given!r}; did you mean {meant!r}?" in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("values", "path", "meant"),
    [
        ({"training": {"learning_rat": 1}}, "training.learning_rat", "training.learning_rate"),
        ({"sead": 1}, "sead", "seed"),
        ({"transport": {"portt": 1}}, "transport.portt", "transport.port"),
        ({"checkpoint": {"evry": 1}}, "checkpoint.evry", "checkpoint.every"),
    ],
)
def test_an_unknown_key_in_a_file_gives_the_nearest_name(values, path, meant):
    with pytest.raises(ConfigError, match=f"{path}: there is no such key; did you mean '{meant}'"):
        build_config(values)


def test_a_misspelt_section_gives_the_nearest_section():
    with pytest.raises(ConfigError, match=r"trainning: there is no such key; did you mean \[training\]\?"):
        build_config({"trainning": {"epochs": 3}})


@pytest.mark.parametrize("given", ["unlabelled", "data.unlabelled", "dtype.zip_code", "dtype.plz", "delimiter.bank"])
def test_an_option_of_the_data_set_that_is_named_as_a_key_gives_the_key(given):
    meant = f"set as data.options.{given.removeprefix('data.')}"
    with pytest.raises(ConfigError, match=meant):
        build_config({}, {given: "drop"})


def test_an_unknown_preset_gives_the_nearest_name():
    with pytest.raises(ConfigError, match="no preset 'cencus'; did you mean 'census'"):
        load_config("cencus")


BAD = [
    ("seed", -1, "at least 0"),
    ("seed", 2**63, "below 9223372036854775808"),
    ("device", "tpu", "cpu, cuda or cuda:N"),
    ("precision", "float16", "'float32', 'tf32' or 'bfloat16'"),
    ("threads", 1.5, "whole number"),
    ("sinks", ["comet"], "'tensorboard', 'wandb' or 'mlflow'"),
    ("data.name", "", "at least 1 character"),
    ("data.options", {"a": math.nan}, "finite"),
    ("data.options", 3, "a table"),
    ("parties.features", ["a", "a"], "named twice"),
    ("parties.features", ["a b"], "letters, digits"),
    ("parties.label_features", "perhaps", "true or false"),
    ("model.cut", -1, "at least 0"),
    ("model.network", "", "at least 1 character"),
    ("model.bottom", [64, 0], "at least 1"),
    ("model.dropout", 1.0, "below 1"),
    ("model.fusion", "product", "'concat', 'sum' or 'mean'"),
    ("training.epochs", True, "whole number"),
    ("training.epochs", "many", "above 0, or 'auto'"),
    ("training.batch_size", 0, "above 0, or 'auto'"),
    ("training.batch_size", -1, "at least 0"),
    ("training.learning_rate", 0.0, "above 0, or 'auto'"),
    ("training.learning_rate", math.inf, "finite"),
    ("training.learning_rate", math.nan, "finite"),
    ("training.learning_rate", True, "number"),
    ("training.validation", 1.0, "below 1"),
    ("attack.max_leak", 0.5, "above 0.5"),
    ("attack.on_leak", "shout", "'stop' or 'warn'"),
    ("attack.snapshots", [-3], "at least 0"),
    ("defenses", [{"t": 1.0}], "needs a name"),
    ("transport.kind", "pigeon", "'inproc', 'stream' or 'messages'"),
    ("transport.in_flight", 65, "at most 64"),
    ("transport.in_flight", -1, "at least 0"),
    ("transport.port", 65536, "at most 65535"),
    ("transport.host", "", "at least 1 character"),
]


@pytest.mark.parametrize(("path", "value", "allowed"), BAD, ids=lambda part: str(part)[:24])
def test_a_bad_value_names_the_field_what_was_given_and_what_is_allowed(path, value, allowed):
    with pytest.raises(ConfigError) as caught:
        build_config({}, {path: value})
    assert path in str(caught.value)
    assert allowed in str(caught.value)
    assert repr(value) in str(caught.value) or repr(value[-1]) in str(caught.value)
    assert str(caught.value).count("given") <= 1


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("threads", value) for value in (1025, 30000, 10**30)),
        ("training.weight_decay", 1e308),
        *((f"transport.{name}_timeout", 1e308) for name in ("connect", "step", "reconnect", "rejoin")),
    ],
)
def test_what_no_machine_can_do_is_refused(key, value):
    with pytest.raises(ConfigError, match=key):
        build_config({}, {key: value})


def test_all_bad_values_are_named_at_once():
    with pytest.raises(ConfigError) as caught:
        build_config({"training": {"epochs": 0}, "model": {"cut": "x"}, "colour": 1})
    assert all(name in str(caught.value) for name in ("training.epochs", "model.cut", "colour"))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"training.validation": 0, "training.patience": 2}, "patience needs a validation part"),
        (
            {"training.order": "time", "training.patience": 2},
            "days once; training.validation is 0.1, set it to 0.0: .*; training.patience is 2, set it to 0",
        ),
        (
            {"training.order": "time", "training.validation": 0, "training.epochs": 6},
            "training.epochs is 6, set it to 1: [a-z ]*$",
        ),
        ({"attack.monitor": False, "attack.max_leak": 0.7}, "set attack.monitor to true"),
        ({"attack.names": [], "attack.max_leak": 0.7}, "at least one in attack.names"),
        ({"transport.wire_dtype": "float16"}, "'inproc' has no wire: set transport.kind to 'stream'"),
        ({"parties.features": "a,b", "parties.attackers": "b,c"}, "attackers names c; parties.features has a, b"),
        ({"parties.features": "a,b", "parties.colluding": "a+c"}, "colluding names c; parties.features has a, b"),
        ({"parties.colluding": "a+b", "attack.monitor": False}, "colluding is measured by the monitor"),
        ({"parties.colluding": "a"}, 'join two or more names with "\\+"'),
        ({"parties.colluding": "a+a"}, "a party is named twice"),
        ({"parties.colluding": "a+b,b+a"}, "a group is named twice"),
        ({"parties.colluding": "a+"}, "'' is no party name"),
        ({"parties.colluding": "a+label"}, "a feature party cannot be called 'label'"),
        ({"parties.features": "a,label"}, "a feature party cannot be called 'label'"),
        ({"parties.features": "a,ids"}, "'ids' is no party name: .* and neither 'ids' nor 'labels'"),
        ({"defenses": [{"t": 1.0}]}, "each defense needs a name"),
        ({"precision": "tf32"}, "which only GPUs have, and device is 'cpu': set device to 'cuda'"),
    ],
)
def test_an_impossible_combination_is_refused_with_the_cure(overrides, message):
    with pytest.raises(ConfigError, match=message):
        build_config({}, overrides)


def test_half_precision_is_possible_where_there_is_a_wire():
    for kind in ("stream", "messages"):
        config = build_config({}, {"transport.kind": kind, "transport.wire_dtype": "bfloat16"})
        assert config.transport.wire_dtype == "bfloat16"


SETS = [
    ("training.epochs=3", ("training", "epochs"), 3),
    ("training-batch-size = 64", ("training", "batch_size"), 64),
    ("training.learning_rate=1e-4", ("training", "learning_rate"), 1e-4),
    ("training.learning_rate=.5", ("training", "learning_rate"), 0.5),
    ("training.learning_rate=1", ("training", "learning_rate"), 1.0),
    ("model.bottom=64,32", ("model", "bottom"), [64, 32]),
    ("model.bottom=[64, 32]", ("model", "bottom"), [64, 32]),
    ("model.bottom=64", ("model", "bottom"), [64]),
    ("model.bottom=[]", ("model", "bottom"), []),
    ("model.bottom=", ("model", "bottom"), []),
    ("parties.features=a, b", ("parties", "features"), ["a", "b"]),
    ("parties.features=['a', \"b\"]", ("parties", "features"), ["a", "b"]),
    ("parties.features=1,true", ("parties", "features"), ["1", "true"]),
    ("data.options.view=all", ("data", "options"), {"view": "all"}),
    ("data.options.min_age=16", ("data", "options"), {"min_age": 16}),
    ('data.options={"view": "all", "n": [1]}', ("data", "options"), {"view": "all", "n": [1]}),
    ("data.path=/tmp/a=b", ("data", "path"), "/tmp/a=b"),
    ("data.name=007", ("data", "name"), "007"),
    ("attack.monitor=false", ("attack", "monitor"), False),
    ("attack.monitor=True", ("attack", "monitor"), True),
    ("sinks=wandb", ("sinks",), ["wandb"]),
    ("attack.positives=1,2", ("attack", "positives"), [1, 2]),
    ("attack.positives=1", ("attack", "positives"), [1]),
    ("seed=5", ("seed",), 5),
    ("defenses=iso(t=5.0), max_norm", ("defenses",), [{"name": "iso", "t": 5.0}, {"name": "max_norm"}]),
    ('defenses=[{"name": "iso", "t": 5}]', ("defenses",), [{"name": "iso", "t": 5}]),
    ('defenses=["iso(t=5.0)"]', ("defenses",), [{"name": "iso", "t": 5.0}]),
    ("defenses=", ("defenses",), []),
    ("defenses=none", ("defenses",), []),
    ("defenses=[]", ("defenses",), []),
]


@pytest.mark.parametrize(("assignment", "place", "value"), SETS, ids=[assignment for assignment, _, _ in SETS])
def test_an_assignment_of_the_command_line_means_what_it_says(assignment, place, value):
    found = build_config({}, parse_assignments([assignment]))
    for name in place:
        found = getattr(found, name)
    assert found == value
    assert type(found) is type(value)


def test_an_option_is_added_to_those_of_the_file_and_the_file_stays_as_it_is():
    values = {"data": {"options": {"view": "adults", "seed": 1}}}
    assert build_config(values, {"data.options.view": "all"}).data.options == {"view": "all", "seed": 1}
    assert values == {"data": {"options": {"view": "adults", "seed": 1}}}


def test_a_whole_number_in_flowers_run_config_is_a_list_of_one():
    assert from_run_config({"model-bottom": 64}).model.bottom == [64]


def test_a_tuple_of_values_is_a_list_of_them():
    assert build_config({}, {"attack.names": ("norm", "cosine")}).attack.names == ["norm", "cosine"]


@pytest.mark.parametrize(
    "text", ["iso(", "iso)", "iso(t)", "iso max_norm", "3", "iso(t=(1))", "[", '[{"name": ', ", iso"]
)
def test_defenses_that_are_not_understood_are_refused(text):
    with pytest.raises(ConfigError, match="defenses"):
        build_config({}, {"defenses": text})


@pytest.mark.parametrize(
    "written",
    [
        '"marvell(s=4.0), max_norm"',
        '["marvell(s=4.0)", "max_norm"]',
        '["marvell(s=4.0), max_norm"]',
        '[{ name = "marvell", s = 4.0 }, "max_norm"]',
    ],
)
def test_defenses_of_a_file_may_be_written_as_calls(tmp_path, written):
    path = tmp_path / "run.toml"
    path.write_text(f"defenses = {written}")
    assert load_config(str(path)).defenses == [{"name": "marvell", "s": 4.0}, {"name": "max_norm"}]


@pytest.mark.parametrize("defenses", ["iso(", ["iso("], ["max_norm", "iso(t)"]])
def test_calls_of_a_file_that_are_not_understood_are_refused_with_an_example(defenses):
    with pytest.raises(ConfigError, match=r'defenses=.iso\(.*(write e\.g\. "iso\(t=5\.0\)"|no key=value)'):
        build_config({"defenses": defenses})


@pytest.mark.parametrize(
    "text",
    [b"seed = ", b"[training\nepochs=1", b"seed = 1\nseed = 2", b"\xff\xfe", b"a=" + b"[" * 5000],
    ids=lambda text: repr(text)[:20],
)
def test_a_broken_file_is_refused_by_name(tmp_path, text):
    path = tmp_path / "run.toml"
    path.write_bytes(text)
    with pytest.raises(ConfigError, match=r"run\.toml"):
        load_config(str(path))


def test_a_missing_file_is_refused_by_name(tmp_path):
    with pytest.raises(ConfigError, match=r"no configuration file '.*nothing\.toml'"):
        load_config(str(tmp_path / "nothing.toml"))


@pytest.mark.parametrize(
    ("text", "name"),
    [("seed = 1979-05-27", "seed"), ("data = 3", "data"), ("training = []", "training"), ("defenses = [1]", "defenses"),
     ("[data.options]\nday = 1979-05-27", "data.options"), ("[data.options]\nx = inf", "data.options")],
)  # fmt: skip
def test_toml_that_is_right_but_means_nothing_here_is_refused_by_field(tmp_path, text, name):
    path = tmp_path / "run.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=name):
        load_config(str(path))


@pytest.mark.parametrize("values", [{"data": 3}, {"data": {"options": 3}}])
def test_an_override_below_something_that_is_no_table_is_refused(values):
    with pytest.raises(ConfigError, match=r"(data|options) must be a table, given 3"):
        build_config(values, {"data.options.view": "all"})


@given(st.dictionaries(st.sampled_from(sorted(leaf_paths())) | TEXT, TEXT, max_size=3))
@settings(max_examples=200)
def test_any_text_is_a_configuration_or_a_configuration_error(overrides):
    try:
        config = build_config({}, overrides)
    except ConfigError:
        return
    assert from_run_config(to_run_config(config)) == config


def test_a_configuration_is_frozen():
    from pydantic import ValidationError

    config = Config()
    for target, name in ((config, "seed"), (config.training, "epochs"), (config, "new")):
        with pytest.raises(ValidationError):
            setattr(target, name, 1)


def test_nothing_secret_is_in_a_configuration():
    keys = json.dumps(to_run_config(Config())).lower()
    assert not any(word in keys for word in ("secret", "token", "password", "private"))


def test_the_order_of_batches_follows_the_seed_unless_it_has_its_own():
    assert build_config({"seed": 4}).shared_seed == 4
    assert build_config({"seed": 4, "schedule_seed": 0}).shared_seed == 0


@pytest.mark.parametrize(("text", "steps"), [("", []), ("[]", []), ("10", [10]), ("10,20", [10, 20])])
def test_the_steps_of_snapshots_are_a_list_that_may_be_empty(text, steps):
    assert build_config({}, {"attack.snapshots": text}).attack.snapshots == steps


def test_a_snapshot_before_the_first_step_is_refused():
    with pytest.raises(ConfigError, match="at least 0"):
        build_config({}, {"attack.snapshots": "-1"})


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "[::]"])
def test_an_endpoint_on_every_address_must_say_which_one_parties_dial(host):
    with pytest.raises(ConfigError, match="no party can dial that"):
        build_config({"transport": {"host": host}})
    assert build_config({"transport": {"host": host, "advertise": "label.example"}}).transport.host == host


@pytest.mark.parametrize(
    ("rows", "batch_size", "epochs", "numbers"),
    [
        (20, 16, 200, "none"),
        (1_437, 32, 98, "none"),
        (2_999, 64, 94, "none"),
        (3_000, 64, 94, "bins"),
        (30_000, 512, 76, "bins"),
        (300_000, 1024, 16, "bins"),
    ],
)
def test_what_is_auto_becomes_values_that_fit_the_rows(rows, batch_size, epochs, numbers):
    config = build_config({}).fitted(rows)
    assert config.model.numeric_embedding == numbers
    fitted = config.training
    assert (fitted.batch_size, fitted.epochs, fitted.learning_rate) == (batch_size, epochs, 1e-3)
    steps = math.ceil((rows - rows // 10) / batch_size)
    assert fitted.patience == max(8, math.ceil(600 / steps))
    assert fitted.fitted(10) == fitted  # numbers stay, whatever the rows


@pytest.mark.parametrize(("rows", "epochs"), [(20, 125), (1_000, 10), (300_000, 10)])
def test_where_labels_are_randomised_there_are_few_epochs_unless_they_are_set(rows, epochs):
    values = {"defenses": "local_head(epsilon=1)"}
    assert build_config({}, values).fitted(rows).training.epochs == epochs
    assert build_config({}, values | {"training.epochs": 30}).fitted(rows).training.epochs == 30


@pytest.mark.parametrize(
    ("values", "patience"),
    [
        ({"training.epochs": 3}, 0),
        ({"training.patience": 5}, 5),
        ({"training.patience": 0}, 0),
        ({"training.validation": 0}, 0),
        ({"attack.max_bound": 0.8}, 0),
        ({"defenses": "local_head(epsilon=1)"}, 0),
        ({"training.order": "time", "training.validation": 0}, 0),
    ],
)
def test_training_ends_early_only_where_nothing_fixes_its_length(values, patience):
    config = build_config({}, values)
    assert config.fitted(1_000).training.patience == patience
    assert build_config(tomllib.loads(to_toml(config))) == config
    assert from_run_config(to_run_config(config)) == config


@pytest.mark.parametrize(("epochs", "patience", "certain"), [(30, 0, 30), (30, 2, 3), (30, 29, 30), (4, 9, 4)])
def test_a_run_that_patience_ends_at_once_still_has_64_scored_steps(epochs, patience, certain):
    config = build_config({}, {"training.epochs": epochs, "training.patience": patience})
    every = config.cadence(26 * epochs)
    assert 64 <= len(range(0, 26 * certain, every)) < 128
    assert config.cadence(10_000 * epochs) == 16


def test_auto_is_a_word_and_no_number_stands_for_it():
    assert build_config({}, {"training.epochs": "auto"}).training.fitted(1_000).epochs == 71
    with pytest.raises(ConfigError, match=r"training\.epochs: give a number above 0, or 'auto'"):
        build_config({}, {"training.epochs": "many"})
    with pytest.raises(ConfigError, match=r"training\.patience: give a number above -1, or 'auto'"):
        build_config({}, {"training.patience": -1})
    with pytest.raises(ConfigError, match="eval_batch_size"):
        build_config({}, {"training.eval_batch_size": "auto"})


def test_a_prepared_folder_is_run_with_the_defaults(tmp_path):
    (tmp_path / "manifest.json").write_text('{"name": "files"}')
    config = load_config(str(tmp_path), {"seed": "3"})
    assert config == build_config({"seed": 3, "data": {"name": "files", "path": str(tmp_path)}})


@pytest.mark.parametrize("text", ["", "[]", '{"no": 1}', "\xff", "[" * 10_000])
def test_a_folder_whose_manifest_is_damaged_is_refused(tmp_path, text):
    (tmp_path / "manifest.json").write_text(text, encoding="latin1")
    with pytest.raises(ConfigError, match="no manifest of prepared data"):
        load_config(str(tmp_path))
