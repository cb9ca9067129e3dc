"""IDs that an alignment compares: those of rows with a label, where others are left out."""

import numpy as np
import pytest
from PIL import Image

from flower_vfl.data.sources.id_sources import id_sources
from flower_vfl.errors import DataError


def label_ids(folder, **options):
    """Return the IDs that the label party brings to an alignment."""
    party, sources = id_sources(folder, {"files": {"a": "a.csv"}, **options})
    return sources[party].read()


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "a.csv").write_text("id,x\np1,1\np2,2\np3,3\n")
    (tmp_path / "label.csv").write_text("id,label\np1,yes\np2,\np3,n/v\np4,no\n")
    return tmp_path


@pytest.mark.parametrize(
    ("options", "ids"),
    [
        ({}, ["p1", "p2", "p3", "p4"]),
        ({"unlabelled": "drop"}, ["p1", "p3", "p4"]),
        ({"unlabelled": "drop", "missing_values": ["n/v"]}, ["p1", "p4"]),
    ],
)
@pytest.mark.parametrize("where", [{"labels_file": "label.csv"}, {"files.b": "label.csv"}])
def test_rows_without_a_label_are_left_out_as_a_run_does(folder, where, options, ids, caplog):
    assert label_ids(folder, **where, **options) == ids
    left = f"label.csv: {4 - len(ids)} of all 4 rows have no label and are left out"
    assert (left in caplog.text) == (len(ids) < 4)


def test_a_label_party_with_two_files_leaves_out_rows_by_the_one_with_the_labels(folder):
    options = {"files": {"a": "a.csv", "b": "a.csv"}, "labels_file": "label.csv", "label_party": "b"}
    assert label_ids(folder, **options, unlabelled="drop") == ["p1", "p3"]


def test_an_id_that_is_repeated_without_a_label_is_no_obstacle(folder):
    with (folder / "label.csv").open("a") as file:
        file.write("p1,\n")
    with pytest.raises(DataError, match="more than once"):
        label_ids(folder, labels_file="label.csv")
    assert label_ids(folder, labels_file="label.csv", unlabelled="drop") == ["p1", "p3", "p4"]


def test_images_and_arrays_are_read_with_their_labels(folder):
    for kind, name in (("yes", "p1"), ("no", "p2")):
        (folder / "photos" / kind).mkdir(parents=True)
        Image.new("L", (2, 2)).save(folder / "photos" / kind / f"{name}.png")
    np.savez(folder / "b.npz", id=np.array(["p1", "p2"]), label=np.array(["yes", ""]), features=np.zeros((2, 3, 4)))
    assert label_ids(folder, **{"files.b": "photos"}, unlabelled="drop") == ["p1", "p2"]
    assert label_ids(folder, **{"files.b": "b.npz"}, unlabelled="drop") == ["p1"]
