"""The part of a party holds all of its own data, and none of another party's."""

import resource

import numpy as np
import pytest

from flower_vfl.data.sources.catalog import prepare
from flower_vfl.data.store.dataset import open_dataset
from flower_vfl.data.store.parts import write_part
from flower_vfl.errors import DataError, OutputExistsError, StorageError


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "whole"
    prepare("synthetic", out=folder, options={"rows": 300, "test_rows": 60})
    return folder


def files_of(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_a_disk_that_gets_full_is_reported_and_nothing_is_left(whole, tmp_path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(StorageError, match=r"could not be written: File too large"):
            write_part(whole, "a", tmp_path / "part")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == []


def test_a_feature_partys_part_has_its_columns_and_neither_labels_nor_the_columns_of_others(whole, tmp_path):
    dataset = open_dataset(whole)
    party = next(name for name in dataset.parties if name != dataset.label_party)
    part = write_part(whole, party, tmp_path / "part")
    assert part.alignment == dataset.alignment
    mine, copied = dataset.party(party), part.party(party)
    rows = np.arange(300)
    for one, other in zip(mine.train.gather(rows), copied.train.gather(rows), strict=True):
        assert one.equal(other)
    others = {name for name in files_of(tmp_path / "part") if name.split("/")[0] not in (party, "ids")}
    assert others == {"manifest.json"}
    with pytest.raises(DataError, match="does not hold the labels"):
        part.labels()
    for other in set(dataset.parties) - {party}:
        with pytest.raises(DataError, match="does not hold the features"):
            part.party(other)


def test_the_label_partys_part_has_the_labels_and_its_own_columns_if_it_has_any(whole, tmp_path):
    dataset = open_dataset(whole)
    part = write_part(whole, dataset.label_party, tmp_path / "part")
    assert (part.labels().train == dataset.labels().train).all()
    own = {name.split("/")[0] for name in files_of(tmp_path / "part")} - {"manifest.json", "ids"}
    assert own == {"labels"} | ({dataset.label_party} & set(dataset.parties))


def test_the_ids_go_with_every_part_because_all_parties_share_them(tmp_path):
    (tmp_path / "a.csv").write_text("id,x\n" + "".join(f"p{row},{row}\n" for row in range(40)))
    (tmp_path / "b.csv").write_text("id,z,label\n" + "".join(f"p{row},{row % 7},{row % 2}\n" for row in range(40)))
    options = {"files": {"a": str(tmp_path / "a.csv"), "b": str(tmp_path / "b.csv")}}
    whole = prepare("files", out=tmp_path / "whole", options=options)
    part = write_part(tmp_path / "whole", "a", tmp_path / "part")
    assert part.ids("train") == whole.ids("train")


def test_an_unknown_party_is_refused_and_the_known_ones_are_named(whole, tmp_path):
    with pytest.raises(DataError, match=r"has no party 'z'; it has a"):
        write_part(whole, "z", tmp_path / "part")
    assert not (tmp_path / "part").exists()


def test_a_part_of_a_part_that_lacks_it_is_refused(whole, tmp_path):
    dataset = open_dataset(whole)
    first, second = dataset.parties[:2]
    write_part(whole, first, tmp_path / "first")
    with pytest.raises(DataError, match=f"does not hold what party '{second}' needs"):
        write_part(tmp_path / "first", second, tmp_path / "second")


def test_a_file_that_changed_since_it_was_prepared_is_not_passed_on(whole, tmp_path):
    import shutil

    shutil.copytree(whole, tmp_path / "whole")
    dataset = open_dataset(tmp_path / "whole")
    party = dataset.parties[0]
    file = next((tmp_path / "whole" / party / "train").glob("*.npy"))
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(bytes(content))
    with pytest.raises(DataError, match="is not as it was prepared"):
        write_part(tmp_path / "whole", party, tmp_path / "part")
    assert not (tmp_path / "part").exists()


def test_a_folder_with_contents_is_not_overwritten(whole, tmp_path):
    (tmp_path / "precious").write_text("x")
    with pytest.raises(OutputExistsError):
        write_part(whole, open_dataset(whole).parties[0], tmp_path)
