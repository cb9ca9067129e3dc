"""`result.json` is complete, or refused with an error that names what is wrong."""

import json
import re

import pytest

from flower_vfl.apps.result_schema import checked_result
from flower_vfl.errors import InputError

LEAK = {"attack": "norm", "party": "a", "phase": "train", "q95": 0.5, "q95_null": None, "max": 1}
REMEMBERED = {**LEAK, "phase": "remembered", "epochs": [1, 2], "values": [0.5, 1]}
WHOLE = {
    "schema": 1,
    "dataset": {},
    "defenses": [{"name": "iso"}],
    "utility": {"last": {"test_auc": 0.5}, "best": None},
    "leakage": [LEAK, REMEMBERED],
    "cost": {},
}
MORE = {
    "weights": {"a": ""},
    "attacks": [{"needs": [], "hints": 0}],
    "rebuild": [{}],
    "epsilon": {"lower": 0.5, "confidence": 0.95, "parties": [{"party": "a"}]},
    "classes": {
        "names": ["no", "yes"],
        "rows": [3, 0],
        "recall": [1.0, None],
        "precision": [1, None],
        "confusion": [[3, 0], [0, 0]],
    },
    "budget": {"leak": {"limit": 0.9, "reached": [0.5, None, 1]}, "bound": {"limit": 1, "reached": []}},
}


def written(tmp_path, result):
    path = tmp_path / "result.json"
    path.write_text(result if isinstance(result, str) else json.dumps(result))
    return path


@pytest.mark.parametrize("result", [WHOLE, WHOLE | MORE])
def test_a_whole_result_is_read_as_it_is(tmp_path, result):
    assert checked_result(written(tmp_path, result)) == result


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schema": 2}, "is no result of schema 1"),
        *(({key: None}, f"'{key}' is None, a (dict|list) is needed") for key in WHOLE if key != "schema"),
        *(({key: None}, f"'{key}' is None, a (dict|list) is needed") for key in (*MORE, "environment", "alone")),
        ({"defenses": {}}, "'defenses' is {}, a list is needed"),
        *(
            ({"utility": {which: 0.5}}, f"'{which}' of 'utility' is 0.5, a dict is needed")
            for which in ("last", "best")
        ),
        *(({key: [{}, 1]}, f"every entry of '{key}' must be an object") for key in ("defenses", "leakage", "rebuild")),
        *(
            ({"defenses": [{"proven": wrong}]}, "'proven' of a defense has numbers 'epsilon' and 'auc'")
            for wrong in (1.0, {"epsilon": 1.0}, {"epsilon": 1.0, "auc": None})
        ),
        *(
            ({"classes": {**MORE["classes"], **wrong}}, "'classes' has a list of names")
            for wrong in (
                {"names": None},
                {"names": [1, 2]},
                {"rows": [3]},
                {"rows": 3},
                {"recall": ["1", None]},
                {"confusion": [[3, 0]]},
                {"confusion": [[3], [0]]},
                {"confusion": 3},
            )
        ),
        *(
            ({"epsilon": {**MORE["epsilon"], **wrong}}, "'epsilon' has a confidence, a lower bound or null")
            for wrong in ({"lower": "1"}, {"confidence": None}, {"parties": None}, {"parties": [1]})
        ),
        ({"attacks": [1]}, "every entry of 'attacks' must be an object"),
        *(
            ({"attacks": [wrong]}, "every entry of 'attacks' must have a list 'needs' and a number 'hints'")
            for wrong in ({"needs": []}, {"hints": 1}, {"needs": "hints", "hints": 1}, {"needs": [], "hints": "1"})
        ),
        *(
            ({"leakage": [{**REMEMBERED, **wrong}]}, "a longitudinal leak has a value for each of its epochs")
            for wrong in (
                *({"epochs": [1]}, {"epochs": [1, 1.5]}, {"epochs": None}, {"epochs": [1, True]}),
                *({"values": [0.5]}, {"values": [0.5, None]}, {"values": 0.5}),
            )
        ),
        ({"leakage": [{**LEAK, "party": 1}]}, "'party' of a leak is 1, a text is needed"),
        *(
            ({"leakage": [{**LEAK, key: "0.5"}]}, f"'{key}' of a leak is '0.5', a number or null is needed")
            for key in ("q95", "q95_null", "q95_turned", "mean", "max", "detection_error_mean", "detection_error_q05")
        ),
        *(
            ({"budget": {"leak": {"limit": 0.9, "reached": [], **wrong}}}, "the budget has a limit.*'leak'")
            for wrong in ({"limit": None}, {"limit": True}, {"reached": 0.5}, {"reached": ["0.5"]})
        ),
        ({"budget": {"bound": [0.9]}}, "the budget has a limit.*'bound'"),
        ({"budget": {"all": {"limit": 0.9, "reached": []}}}, "the budget has a limit.*'all'"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, change, words):
    path = written(tmp_path, {**WHOLE, **change})
    with pytest.raises(InputError, match=f"^{re.escape(str(path))}.*{words}"):
        checked_result(path)


@pytest.mark.parametrize("key", [key for key in WHOLE if key != "schema"])
def test_a_section_that_is_missing_is_named(tmp_path, key):
    with pytest.raises(InputError, match=f"'{key}' is None"):
        checked_result(written(tmp_path, {name: value for name, value in WHOLE.items() if name != key}))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[1]", "is no result of schema 1"),
        ("{", "is not valid JSON"),
        ("[" * 100_000, "is not valid JSON"),
        ('{"schema": NaN}', "holds NaN, which is no number of JSON"),
        *((f'{{"schema": {number}}}', "holds the number .*, which is too large") for number in ("1e999", "9" * 400)),
    ],
)
def test_what_is_no_object_of_json_is_named(tmp_path, text, words):
    path = written(tmp_path, text)
    with pytest.raises(InputError, match=f"^{re.escape(str(path))} {words}"):
        checked_result(path)


def test_a_result_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InputError, match=f"^{re.escape(str(tmp_path))}.* cannot be read"):
        checked_result(tmp_path / "result.json")
