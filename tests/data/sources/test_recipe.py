"""Options of data sets as given on the command line."""

import pytest

from flower_vfl.config import build_config
from flower_vfl.config.parsing import parse_assignments
from flower_vfl.data.sources.catalog import RECIPES
from flower_vfl.data.sources.recipe import build_options
from flower_vfl.errors import ConfigError


def given(name, *assignments):
    """Return the options that the command line's `--set` gives a data set."""
    values = {f"data.options.{key}": value for key, value in parse_assignments(assignments).items()}
    return build_options(RECIPES[name], build_config({}, values).data.options)


@pytest.mark.parametrize(
    ("name", "assignment", "option", "value"),
    [
        ("fashion-mnist", "classes=0,1", "classes", ["T-shirt/top", "Trouser"]),
        ("fashion-mnist", "classes=[0, 1]", "classes", ["T-shirt/top", "Trouser"]),
        ("fashion-mnist", "classes=[Coat, Shirt]", "classes", ["Coat", "Shirt"]),
        ("fashion-mnist", "classes=", "classes", []),
        ("fashion-mnist", "limit=90", "limit", 90),
        ("files", "categorical=year, postcode", "categorical", ("year", "postcode")),
        ("files", 'categorical=["year", "a, b"]', "categorical", ("year", "a, b")),
        ("files", "ignore=[postcode]", "ignore", ("postcode",)),
        ("files", "ignore=2019", "ignore", ("2019",)),
        ("files", "ignore=true", "ignore", ("true",)),
        ("files", "ignore=[true, 2019]", "ignore", ("true", "2019")),
        ("files", "image_size=84,96", "image_size", (84, 96)),
        ("files", "image_size=[84, 96]", "image_size", (84, 96)),
        ("files", "positive=true", "positive", "true"),
        ("files", "positive=1", "positive", "1"),
        ("criteo", 'columns=["I1", "C1"]', "columns", ("I1", "C1")),
        ("criteo", "label_columns=I1,C1", "label_columns", ("I1", "C1")),
    ],
)
def test_an_option_means_what_was_typed(name, assignment, option, value):
    files = ["files.a=a.csv"] if name == "files" else []
    assert getattr(given(name, assignment, *files), option) == value


def test_a_list_of_numbers_can_be_typed():
    assert given("fashion-mnist", "positive=Shirt", "thin=584,5256").thin == [584, 5256]
    assert given("fashion-mnist", "positive=Shirt", "thin=[584,5256]").thin == [584, 5256]


@pytest.mark.parametrize(
    ("name", "assignment", "text"),
    [
        ("fashion-mnist", "thin=many,5", "option thin.0 of fashion-mnist: .*whole number.*, given 'many'"),
        ("fashion-mnist", "classes=0", "option classes of fashion-mnist: name two classes or more"),
        ("files", "image_size=84x84", "option image_size.0 of files: .*whole number.*, given '84x84'"),
    ],
)
def test_a_wrong_option_is_refused_as_it_was_typed(name, assignment, text):
    with pytest.raises(ConfigError, match=text):
        given(name, assignment, *(["files.a=a.csv"] if name == "files" else []))
