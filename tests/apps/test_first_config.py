"""A first configuration for a user's own tables: its questions, its refusals and its file."""

import pytest

from flower_vfl.apps.first_config import ask_files, check_first_config, files_of, write_first_config
from flower_vfl.config import load_config
from flower_vfl.data.sources.catalog import load
from flower_vfl.errors import ConfigError, DataError

BANK, SHOP = "customer,income,default\nc1,3,0\n", "customer,town,spent\nc1,Ulm,4\n"


def no_answer(option, question, usual):
    raise ConfigError(f"{option}: {question}")


def begin(tmp_path, ask=no_answer, *, bank=BANK, shop=SHOP, **given):
    (tmp_path / "bank 'x'.csv").write_text(bank)
    (tmp_path / "shop.csv").write_text(shop)
    files = files_of([f"bank={tmp_path}/bank 'x'.csv", f"shop={tmp_path}/shop.csv"])
    return write_first_config(files, tmp_path / "run.toml", ask=ask, **given)


def test_what_the_headers_leave_open_is_asked_and_written_to_the_file(tmp_path):
    asked = []

    def ask(option, question, usual):
        asked.append(option)
        return usual or "default"

    assert begin(tmp_path, ask) == "bank"
    assert asked == ["--label"]
    options = load_config(str(tmp_path / "run.toml")).data.options
    assert options["files"] == {"bank": f"{tmp_path}/bank 'x'.csv", "shop": f"{tmp_path}/shop.csv"}
    assert (options["id"], options["label"], options["label_party"]) == ("customer", "default", "bank")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "--label: column of the label, of default, income, spent, town"),
        ({"label": "defualt"}, "no file has the label column 'defualt'; did you mean 'default'"),
        ({"label": "default", "id_column": "income"}, "the file of shop has no ID column 'income'"),
        (
            {"label": "default", "shop": "town,spent\nUlm,4\n"},
            "where it has another. First columns: bank: 'customer', 'income', 'default'; shop: 'town', 'spent'",
        ),
        ({"label": "customer"}, "'customer' is the column of the ID, which cannot be the label"),
        ({"label": "income", "id_column": "income"}, "'income' is the column of the ID, which cannot be the label"),
        (
            {"label": "default", "shop": "customer,default\nc1,1\n"},
            "--label-party: the party with the 'default' that counts",
        ),
        ({"label": "default", "label_party": "shop"}, "in the file of bank, not in that of 'shop'"),
    ],
)
def test_a_column_that_is_not_where_it_must_be_is_named(changes, words, tmp_path):
    with pytest.raises(ConfigError) as caught:
        begin(tmp_path, **changes)
    assert words in str(caught.value)
    assert not (tmp_path / "run.toml").exists()


@pytest.mark.parametrize("files", [["bank"], ["=x.csv"], ["a=x.csv", "a=y.csv"], ["label/x=y.csv"]])
def test_invalid_pairs_of_party_and_file_are_refused(files):
    with pytest.raises((ConfigError, DataError)):
        files_of(files)


def test_an_answer_that_is_no_choice_is_asked_again(tmp_path):
    asked, answers = [], iter(["defualt", "default"])

    def ask(option, question, usual):
        asked.append(question)
        return next(answers)

    assert begin(tmp_path, ask) == "bank"
    listed = "column of the label, of default, income, spent, town"
    assert asked == [listed, f"'defualt' is none of them; {listed}"]


def test_a_single_party_is_no_federation(tmp_path):
    (tmp_path / "bank.csv").write_text(BANK)
    (tmp_path / "labels.csv").write_text("customer,default\nc1,0\n")
    files = files_of([f"bank={tmp_path}/bank.csv"])
    with pytest.raises(ConfigError, match="a run needs another party than 'bank', which has the labels: add its table"):
        write_first_config(files, tmp_path / "run.toml", id_column="customer", label="default", ask=no_answer)
    assert not (tmp_path / "run.toml").exists()
    options = {"labels_file": str(tmp_path / "labels.csv")}
    assert write_first_config(files, tmp_path / "run.toml", label="default", options=options, ask=no_answer) == "label"


def test_files_that_are_not_given_are_asked_for():
    assert ask_files(lambda *question: "bank='my bank.csv' shop=shop.csv") == ["bank=my bank.csv", "shop=shop.csv"]
    with pytest.raises(ConfigError, match="a quote is left open"):
        ask_files(lambda *question: "bank='my")


def test_a_configuration_is_a_toml_file(tmp_path):
    with pytest.raises(ConfigError, match=r"--out .*/own\.toml"):
        write_first_config({}, tmp_path / "own", ask=no_answer)


def test_a_configuration_that_is_there_stays(tmp_path):
    (tmp_path / "run.toml").write_text("seed = 1\n")
    with pytest.raises(ConfigError, match="exists already"):
        begin(tmp_path, label="default")
    assert (tmp_path / "run.toml").read_text() == "seed = 1\n"


def test_a_file_may_have_another_delimiter(tmp_path):
    assert begin(tmp_path, bank=BANK.replace(",", ";"), label="default") == "bank"
    assert "delimiter" not in load_config(str(tmp_path / "run.toml")).data.options
    assert '\n# positive = "yes" ' in (tmp_path / "run.toml").read_text()


def test_options_of_the_files_are_used_and_written(tmp_path):
    german, options = "customer;income;Größe;default\nc1;3;1;0\n", {"encoding.bank": "cp1252", "decimal": ","}
    (tmp_path / "bank.csv").write_bytes(german.encode("cp1252"))
    (tmp_path / "shop.csv").write_text(SHOP)
    files = files_of([f"bank={tmp_path}/bank.csv", f"shop={tmp_path}/shop.csv"])
    out = tmp_path / "run.toml"
    with pytest.raises(DataError, match=r"--set encoding\.bank=cp1252"):
        write_first_config(files, out, label="default", ask=no_answer)
    given = {**options, "missing_values": "-999,unknown", "missing": "error"}
    write_first_config(files, out, label="default", options=given, ask=no_answer)
    written = load_config(str(out)).data.options
    assert (written["encoding"], written["decimal"]) == ({"bank": "cp1252"}, ",")
    assert written["missing"] == "error"
    assert written["missing_values"] == ["-999", "unknown"]


def test_the_id_column_that_headers_give_may_be_of_whole_numbers(tmp_path):
    assert begin(tmp_path, label="default", options={"dtype.customer": "integer"}) == "bank"
    assert load_config(str(tmp_path / "run.toml")).data.options["dtype"] == {"customer": "integer"}
    (tmp_path / "run.toml").unlink()
    with pytest.raises(ConfigError, match=r"'income' is one of .*, or for the ID integer; given 'integer'"):
        begin(tmp_path, label="default", options={"dtype.income": "integer"})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"encodign": "cp1252"}, "did you mean 'encoding'"),
        ({"encoding": "cp125x"}, "there is no encoding 'cp125x'"),
        ({"label": "x"}, "use --label"),
    ],
)
def test_options_that_init_cannot_use_are_refused(options, words, tmp_path):
    with pytest.raises(ConfigError, match=words):
        begin(tmp_path, label="default", options=options)


def test_a_file_of_ids_and_labels_becomes_the_file_of_the_labels(tmp_path):
    bank = "customer;default\n" + "".join(f"c{row};{row % 2}\n" for row in range(40))
    shop = "customer,spent\n" + "".join(f"c{row},{row % 5}\n" for row in range(40))
    assert begin(tmp_path, bank=bank, shop=shop, label="default", options={"encoding.bank": "cp1252"}) == "bank"
    options = load_config(str(tmp_path / "run.toml")).data.options
    assert options["files"] == {"shop": f"{tmp_path}/shop.csv"}
    assert options["labels_file"] == f"{tmp_path}/bank 'x'.csv"
    assert options["encoding"] == {"labels": "cp1252"}
    dataset = load("files", options=options, cache=tmp_path / "cache")
    assert (dataset.label_party, dataset.parties, len(dataset.labels().train) > 20) == ("bank", ("shop",), True)


@pytest.mark.parametrize(("given", "party"), [({}, "label"), ({"label_party": "bank"}, "bank")])
def test_a_file_of_labels_is_taken_from_the_options(given, party, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "labels.csv").write_text("customer;paid\n" + "".join(f"c{row};{row % 2}\n" for row in range(40)))
    bank = "customer,income\n" + "".join(f"c{row},{row % 7}\n" for row in range(40))
    shop = "customer,spent\n" + "".join(f"c{row},{row % 5}\n" for row in range(40))
    asked = []

    def ask(option, question, usual):
        assert not asked
        asked.append(question)
        return "paid"

    assert begin(tmp_path, ask, bank=bank, shop=shop, options={"labels_file": "labels.csv"}, **given) == party
    assert asked == ["column of the label, of paid"]
    options = load_config(str(tmp_path / "run.toml")).data.options
    assert options["labels_file"] == f"{tmp_path}/labels.csv"
    assert set(options["files"]) == {"bank", "shop"}
    dataset = load("files", options=options, cache=tmp_path / "cache")
    assert (dataset.label_party, dataset.parties) == (party, ("bank", "shop"))


def test_a_file_of_labels_that_cannot_be_used_is_named(tmp_path):
    (tmp_path / "labels.csv").write_text("customer,paid\n")
    options = {"labels_file": str(tmp_path / "labels.csv")}
    with pytest.raises(ConfigError, match="labels_file has no label column 'piad'; did you mean 'paid'"):
        begin(tmp_path, label="piad", options=options)
    with pytest.raises(DataError, match=r"there is no file .*labels\.txt"):
        begin(tmp_path, label="paid", options={"labels_file": str(tmp_path / "labels.txt")})


def sold(row):
    return f"c{row},{row % 7},{row % 5}\n"


@pytest.mark.parametrize(
    ("shop", "options", "words"),
    [
        ("".join(map(sold, range(80))), {}, ""),
        ("".join(f"c{row},n.v.,1\n" if row == 8 else sold(row) for row in range(80)), {}, "'n.v.'"),
        ("".join(map(sold, [*range(80), 8])), {}, "1 ID in column 'customer' occurs more than once, in rows 9, 81"),
        ("".join(map(sold, range(100, 180))), {}, "no ID is in all of"),
        ("", {}, "has no rows"),
        (
            "".join(map(sold, range(80))),
            {"dtype.spnt": "category"},
            "no table has a column 'spnt'; did you mean 'spent'",
        ),
    ],
)
def test_files_are_checked_once_their_configuration_is_written(shop, options, words, tmp_path, monkeypatch):
    monkeypatch.setenv("FLOWER_VFL_CACHE", str(tmp_path / "cache"))
    bank = "customer,income,default\n" + "".join(f"c{row},{row % 9},{row % 2}\n" for row in range(80))
    begin(tmp_path, bank=bank, shop=f"customer,spent,visits\n{shop}", label="default", options=options)
    path = tmp_path / "run.toml"
    if not words:
        check_first_config(path)
        return
    with pytest.raises((ConfigError, DataError)) as caught:
        check_first_config(path)
    assert words in str(caught.value)
    assert f"{path} was written, but a run would stop at this" in str(caught.value)
    assert str(caught.value).endswith(f"flower-vfl data show {path}")
