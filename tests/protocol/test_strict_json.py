"""Plain JSON is read; the refused forms are tested with frames."""

import pytest

from flower_vfl.protocol import strict_json


@pytest.mark.parametrize(
    ("text", "value"), [("[1, -2.5e3, true, null]", [1, -2500.0, True, None]), (b'{"a": {}}', {"a": {}})]
)
def test_strict_json_reads_plain_json(text, value):
    assert strict_json.loads(text) == value
