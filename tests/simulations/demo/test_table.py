"""The demo's table: its columns come from the verdict of each result."""

from flower_vfl.simulations.demo.table import HEADINGS, leaks, markdown, print_demo

LINE = {"practical": {"label": "residual", "reached": 0.97, "null": 0.55}, "informed": {"reached": 0.981}}

BOTH = [
    {"attack": "informed", "phase": "audit", "sees": sees, "mean": mean}
    for sees, mean in ((["gradients"], 0.999), (["gradients", "embeddings"], 0.984), (["gradients", "columns"], None))
]


def result(defense="", verdict=None, **params):
    defenses = [{"name": defense, "params": params}] if defense else []
    utility = {"last": {"test_auc": 0.93321, "test_accuracy": 0.9}}
    return {"defenses": defenses, "utility": utility, "leakage": BOTH if verdict else [], "verdict": verdict}


def verdict(*lines):
    return {"status": "leaks", "parties": [{"party": "a", "leak": line} for line in lines]}


def test_of_several_parties_the_worst_counts_with_the_chance_level_of_that_one():
    other = {"practical": {"label": "norm", "reached": 0.99, "null": 0.6}, "informed": {"reached": 0.7}}
    assert leaks(result(verdict=verdict(LINE, other))) == (0.99, 0.981, 0.984, 0.6)
    assert leaks(result(verdict=verdict({"practical": None, "informed": {"reached": 0.7}}))) == (None, 0.7, 0.984, None)


def test_what_was_not_measured_is_a_dash():
    assert leaks(result()) == (None, None, None, None)
    assert markdown([result()]).splitlines()[-1] == "| none | 0.9332 | – | – | – | – |"


def test_the_table_fits_eighty_columns_with_names_and_numbers_whole(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    runs = [
        result("potential_energy", verdict(LINE), alpha=1.0),
        result("marvell_full", verdict(LINE), s=4.0),
        result(verdict=verdict(LINE)),
    ]
    print_demo(runs)
    shown = capsys.readouterr().out.splitlines()
    assert max(map(len, shown)) <= 80
    cells = [line.split() for line in shown]
    for name in ("potential_energy(alpha=1)", "marvell_full(s=4)", "none"):
        assert [name, "0.9332", "0.970", "0.981", "0.984", "0.550"] in cells


def test_markdown_has_the_columns_and_a_row_for_each_run():
    lines = markdown([result(verdict=verdict(LINE)), result("max_norm", verdict(LINE))]).splitlines()
    assert lines[0] == f"| {' | '.join(HEADINGS)} |"
    assert lines[1].count("---") == len(HEADINGS)
    numbers = "0.9332 | 0.970 | 0.981 | 0.984 | 0.550"
    assert lines[2:] == [f"| none | {numbers} |", f"| max_norm | {numbers} |"]
