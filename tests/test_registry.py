"""Lookup of names with its error texts, and of methods of other packages, which are found by their exact names."""

import ast
import inspect
import shutil
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flower_vfl.attacks import ATTACKS
from flower_vfl.errors import ConfigError, lookup, suggestion
from flower_vfl.metrics import ArgumentError
from flower_vfl.registry import BUILT_IN, MethodNames, Methods, parameters

TABLE = {"iso": 1, "marvell": 2, "max_norm": 3}


@pytest.mark.parametrize("name", TABLE)
def test_a_known_name_is_found(name):
    assert lookup("defense", name, TABLE) == TABLE[name]


@pytest.mark.parametrize(("given", "meant"), [("marvel", "marvell"), ("max-norm", "max_norm"), ("is", "iso")])
def test_an_unknown_name_gives_the_nearest_one_and_all_others(given, meant):
    with pytest.raises(ConfigError) as caught:
        lookup("defense", given, TABLE)
    assert f"no defense named {given!r}; did you mean {meant!r}? Allowed: iso, marvell, max_norm" in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_name_that_is_near_to_nothing_gets_the_list_alone():
    assert suggestion("xyzzy", TABLE) == "Allowed: iso, marvell, max_norm"
    assert suggestion("x", []) == "Allowed: nothing"


@given(st.text(), st.lists(st.text()))
def test_any_name_gets_an_answer(name, choices):
    text = suggestion(name, choices)
    assert "Allowed: " in text or text.startswith("did you mean ")


def test_a_value_that_is_false_is_found_too():
    assert lookup("thing", "none", {"none": None}) is None


class Tool:
    """Base class of the methods of these tests."""

    name = "tool"
    params = {}  # noqa: RUF012


class Hammer(Tool):
    name = "hammer"


TOOLS = Methods(MethodNames("tool", "flower_vfl.test_tools", {"hammer": "tests.test_registry:Hammer"}), (Tool,))

SAW = """
from tests.test_registry import Tool
class Saw(Tool):
    name = "saw"
    class Inner(Tool):
        name = "inner-saw"
"""


def declare(*lines):
    return "[flower_vfl.test_tools]\n" + "\n".join(lines) + "\n"


@pytest.fixture(autouse=True)
def _one_tool(monkeypatch):
    """Let installed packages import this module under its name, so that they subclass this `Tool`."""
    monkeypatch.setitem(sys.modules, "tests.test_registry", sys.modules[__name__])


def test_a_class_of_an_installed_package_is_found_by_module_and_class(install):
    install("workshop", {"workshop_tools": SAW})
    assert TOOLS.find("workshop_tools:Saw").name == "saw"
    assert TOOLS.find("workshop_tools:Saw.Inner").name == "inner-saw"


def test_an_entry_point_is_found_by_its_name(install):
    install("workshop", {"workshop_tools": SAW}, declare("saw = workshop_tools:Saw"))
    assert TOOLS.find("saw") is TOOLS.find("workshop_tools:Saw")
    assert TOOLS.find("hammer") is Hammer


def test_what_is_installed_and_removed_after_the_first_lookup_is_seen(install):
    site = install("bench", {"workshop_tools": SAW})
    with pytest.raises(ConfigError):
        TOOLS.find("saw")
    info = site / "workshop-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: workshop\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(declare("saw = workshop_tools:Saw"))
    assert TOOLS.find("saw").name == "saw"
    shutil.rmtree(info)
    with pytest.raises(ConfigError):
        TOOLS.find("saw")


def test_nothing_is_imported_that_is_not_named(install):
    install("workshop", {"workshop_tools": SAW}, declare("saw = workshop_tools:Saw"))
    TOOLS.find("hammer")
    with pytest.raises(ConfigError):
        TOOLS.find("drill")
    assert "workshop_tools" not in sys.modules
    TOOLS.find("saw")
    assert "workshop_tools" in sys.modules


def test_an_unknown_name_is_answered_with_the_names_of_other_packages_too(install):
    install("workshop", {"workshop_tools": SAW}, declare("saw = workshop_tools:Saw"))
    with pytest.raises(ConfigError, match=r"no tool named 'sow'; did you mean 'saw'\? Allowed: hammer, saw, or mod"):
        TOOLS.find("sow")


@pytest.mark.parametrize(
    "given",
    [
        "workshop_tools:",
        ":Saw",
        "workshop_tools:Saw:Saw",
        "workshop tools:Saw",
        "workshop_tools:Saw()",
        "workshop_tools:__import__('os').system('true')",
        "workshop_tools:Saw.__class__",
        "__main__:Saw",
        "../workshop_tools:Saw",
        ".workshop_tools:Saw",
        "workshop_tools.:Saw",
        "workshop_tools:S\u0430w",
        "workshop_tools:Saw\n",
        "1workshop:Saw",
    ],
)
def test_what_is_no_reference_is_refused_before_anything_is_imported(given, install):
    install("workshop", {"workshop_tools": SAW})
    with pytest.raises(ConfigError, match=r"is no module:Class: write identifiers .* my_package\.tools:MyClass"):
        TOOLS.find(given)
    assert "workshop_tools" not in sys.modules


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("class Thing: name = 'thing'", r"is <class 'odd.Thing'>; a subclass of tests\.test_registry\.Tool is needed"),
        ("def Thing(): pass", "is <function Thing at .*>; a subclass of"),
        ("Thing = 3", "is 3; a subclass of"),
        ("import os as Thing", "is <module 'os'"),
        ("Saw = 3", "cannot be loaded: AttributeError: .*has no attribute 'Thing'"),
        ("raise RuntimeError('no\\nluck')", "cannot be loaded: RuntimeError: no luck; the package that has it must be"),
        ("import sys; sys.exit(3)", "cannot be loaded: SystemExit: 3"),
        ("import no_such_package", "cannot be loaded: ModuleNotFoundError: No module named 'no_such_package'"),
        ("def (", "cannot be loaded: SyntaxError"),
        ("from tests.test_registry import Tool\nclass Thing(Tool): name = 'two words'", "has the name 'two words'"),
        ("from tests.test_registry import Tool\nclass Thing(Tool): name = 3", "has the name 3"),
        (
            "from tests.test_registry import Tool\nfrom abc import ABC, abstractmethod\n"
            "class Thing(Tool, ABC):\n    name = 'thing'\n    @abstractmethod\n    def work(self): ...",
            "is abstract: the class must define work",
        ),
    ],
)
def test_what_is_no_such_method_is_refused_with_what_was_found_and_what_is_needed(code, words, install):
    install("oddity", {"odd": code}, declare("thing = odd:Thing"))
    for name, begin in (("odd:Thing", "odd:Thing "), ("thing", "the tool 'thing' of oddity 1.0, odd:Thing, ")):
        with pytest.raises(ConfigError, match=words) as caught:
            TOOLS.find(name)
        assert str(caught.value).startswith(begin)


def test_a_package_that_is_not_installed_is_named():
    with pytest.raises(ConfigError, match=r"no_such_package:Thing cannot be loaded: .* installed on every host"):
        TOOLS.find("no_such_package:Thing")


def test_a_module_that_is_nowhere_is_refused_before_anything_is_imported():
    with pytest.raises(ConfigError, match=r"no_such_package:Thing cannot be loaded: .* 'no_such_package'.* PYTHONPATH"):
        TOOLS.names.check("no_such_package:Thing")
    TOOLS.names.check("tests.toys:Thing")  # whether it has the class is found when it is loaded


def test_an_entry_point_and_its_class_have_one_name(install):
    install("workshop", {"workshop_tools": SAW}, declare("big-saw = workshop_tools:Saw"))
    with pytest.raises(ConfigError, match=r"'big-saw' of workshop 1\.0 is a class with the name 'saw'"):
        TOOLS.find("big-saw")


def test_two_packages_with_one_name_are_refused_and_both_named(install):
    install("workshop", {"workshop_tools": SAW}, declare("saw = workshop_tools:Saw"))
    install("factory", {"factory_tools": SAW}, declare("saw = factory_tools:Saw"), version="2.1")
    with pytest.raises(ConfigError, match=r"'saw' is declared by .*: uninstall all but one") as caught:
        TOOLS.find("saw")
    assert "workshop 1.0" in str(caught.value)
    assert "factory 2.1" in str(caught.value)
    assert TOOLS.find("factory_tools:Saw").__module__ == "factory_tools"


def test_a_package_with_the_name_of_a_built_in_one_is_refused_and_the_built_in_is_not_replaced(install):
    code = SAW.replace('"saw"', '"hammer"')
    install("workshop", {"workshop_tools": code}, declare("hammer = workshop_tools:Saw"))
    with pytest.raises(ConfigError, match=r"'hammer' is declared by flower_vfl and by workshop 1\.0"):
        TOOLS.find("hammer")
    assert TOOLS.find("tests.test_registry:Hammer") is Hammer


def test_a_class_that_calls_itself_like_a_built_in_one_is_refused(install):
    install("workshop", {"workshop_tools": SAW.replace('"saw"', '"hammer"')})
    with pytest.raises(ConfigError, match=r"has the name 'hammer', which is that of a built-in tool"):
        TOOLS.find("workshop_tools:Saw")


def test_two_classes_of_one_name_are_refused_in_one_run_and_one_class_named_twice_is_not(install):
    install("workshop", {"workshop_tools": SAW}, declare("saw = workshop_tools:Saw"))
    install("factory", {"factory_tools": SAW})
    with pytest.raises(ConfigError, match=r"saw and factory_tools:Saw both have the name 'saw'"):
        TOOLS.find_all(["hammer", "saw", "factory_tools:Saw"])
    assert [tool.name for tool in TOOLS.find_all(["saw", "hammer", "workshop_tools:Saw"])] == ["saw", "hammer", "saw"]


def test_all_are_listed_and_what_is_broken_with_its_reason(install):
    install("workshop", {"workshop_tools": SAW}, declare("saw = workshop_tools:Saw", "drill = workshop_tools:Drill"))
    install("ruin", {"ruin": "raise ImportError('rusty')"}, declare("rust = ruin:Rust", "hammer = ruin:Hammer"))
    rows = {(row.name, row.source): row for row in TOOLS.listed()}
    assert [name for name, _ in rows] == ["hammer", "drill", "hammer", "rust", "saw"]
    assert rows["saw", "workshop 1.0"].method.name == "saw"
    assert rows["saw", "workshop 1.0"].problem == ""
    assert "no attribute 'Drill'" in rows["drill", "workshop 1.0"].problem
    assert "ImportError: rusty" in rows["rust", "ruin 1.0"].problem
    assert "declared by flower_vfl and by ruin 1.0" in rows["hammer", BUILT_IN].problem
    assert rows["hammer", BUILT_IN].method is Hammer


@pytest.mark.parametrize("error", [TypeError("no such thing"), ValueError("too big")])
def test_parameters_that_a_class_refuses_are_bad_input(error):
    class Picky(Tool):
        name = "picky"

        def __init__(self, size=1, method=None):
            if size > 1:
                raise error
            self.params = {"method": method}

    assert isinstance(TOOLS.make(Picky, method="by hand"), Picky)
    with pytest.raises(ConfigError, match=rf"the tool 'picky' cannot be made with {{'size': 2}}: {error}"):
        TOOLS.make(Picky, size=2)


def test_a_parameter_that_results_would_not_show_is_refused():
    class Hiding(Tool):
        name = "hiding"

        def __init__(self, size=1):
            self.size = size

    assert TOOLS.make(Hiding).size == 1
    with pytest.raises(ConfigError, match="the tool 'hiding' does not show size in its `params`"):
        TOOLS.make(Hiding, size=2)


def test_a_name_of_the_base_class_that_a_method_overwrites_is_bad_input():
    class Labelled(Tool):
        name = "labelled"

        def __init__(self):
            self.label = 1

    class Clashing(Labelled):
        @property
        def label(self):
            return ""

    with pytest.raises(ConfigError, match=r"the tool 'labelled' sets `self\.label`, its name in logs"):
        TOOLS.make(Labelled)
    with pytest.raises(ConfigError, match=r"cannot be made with .*: property 'label' of .* has no setter"):
        TOOLS.make(Clashing)


def test_a_parameter_that_a_class_does_not_have_is_named_beside_those_that_it_has():
    class Choosy(Tool):
        name = "choosy"

        def __init__(self, inner, *, width=1, depth=2):
            pass

    with pytest.raises(ConfigError, match=r"no parameter 'widht'; did you mean 'width'\? Allowed: depth, width"):
        TOOLS.make(Choosy, "inner", widht=2)
    with pytest.raises(ConfigError, match=r"there is no parameter 'inner'; "):
        TOOLS.make(Choosy, "inner", inner=2)

    class Open(Tool):
        name = "open"

        def __init__(self, **more):
            raise TypeError("takes no offence")

    with pytest.raises(ConfigError, match="takes no offence"):
        TOOLS.make(Open, any=2)


def test_an_error_of_ours_keeps_its_words():
    class Careful(Tool):
        name = "careful"

        def __init__(self):
            raise ArgumentError("careful: no")  # a ValueError too

    with pytest.raises(ArgumentError, match=r"^careful: no$"):
        TOOLS.make(Careful)


def test_the_lookup_loads_neither_torch_nor_flwr():
    code = (
        "import sys; from flower_vfl.registry import MethodNames, Methods;"
        "Methods(MethodNames('x', 'flower_vfl.defenses', {}), (object,)).listed();"
        "print(sorted({'torch', 'flwr'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", sorted(ATTACKS))
def test_what_an_attack_is_made_with_is_known_without_parsing_a_text(name, monkeypatch):
    attack = ATTACKS[name]
    expected = dict(inspect.signature(attack).parameters)
    monkeypatch.setattr(ast, "parse", None)  # two threads that parse at once break Python 3.11
    assert dict(parameters(attack)) == expected
