"""ISIC 2020 from generated files in its two forms: parts by patients, drawn benign images, damaged files."""

import gzip
import io
import tarfile

import numpy as np
import pytest
from PIL import Image

from flower_vfl.data.sources.catalog import load
from flower_vfl.errors import ConfigError, DataError

HEADER = "image_name,patient_id,sex,age_approx,anatom_site_general_challenge,diagnosis,benign_malignant,target"


def image(value, size=(84, 84), kind="PNG"):
    """Return an image file of one grey, which JPEG nearly keeps."""
    file = io.BytesIO()
    Image.new("RGB", size, (value,) * 3).save(file, kind)
    return file.getvalue()


def line(name, patient, target):
    return f"ISIC_{name},{patient},male,45.0,torso,unknown,{'malignant' if target else 'benign'},{target}"


def table(folder, lines=None, rows=60, patients=16):
    """Write photographs of several sizes and their table; every fifth one is malignant."""
    (folder / "jpeg" / "train").mkdir(parents=True)
    made = [line(row, f"IP_{row % patients}", int(row % 5 == 0)) for row in range(rows)]
    for row in range(rows):
        content = image(4 * row, size=(84 + 20 * (row % 4), 300 - 30 * (row % 3)), kind="JPEG")
        (folder / "jpeg" / "train" / f"ISIC_{row}.jpg").write_bytes(content)
    (folder / "train.csv").write_text("\n".join([HEADER, *(made if lines is None else lines)]) + "\n")
    return folder


def tree(counts=(9, 3, 6, 2)):
    """Return names and contents of benign and malignant images of both parts."""
    files, value = {}, 0
    for place, count in zip(("train/benign", "train/malignant", "test/benign", "test/malignant"), counts, strict=True):
        for number in range(count):
            files[f"{place}/ISIC_{number:03}.png"] = image(value)
            value += 5
    return files


def unpacked(folder, files):
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def greys(dataset, part):
    images = getattr(dataset.party("image"), part).gather(np.arange(dataset.rows(part)))[0].numpy()
    assert images.shape[1:] == (3, 84, 84)
    return (images.mean(axis=(1, 2, 3)) * 255).round().astype(int).tolist()


def test_photographs_of_any_size_are_scaled_and_labelled(tmp_path):
    dataset = load("isic", path=table(tmp_path), options={"benign": 0})
    assert dataset.class_names == ("not malignant", "malignant")
    assert dataset.rows("train") + dataset.rows("test") == 60
    rows = {part: np.array(greys(dataset, part)) / 4 for part in ("train", "test")}
    for part, found in rows.items():
        assert np.array_equal(np.round(found) % 5 == 0, getattr(dataset.labels(), part) == 1)
        assert np.abs(found - np.round(found)).max() <= 0.25  # JPEG nearly keeps a grey
    assert sorted(np.round(np.concatenate(list(rows.values())))) == list(range(60))


def test_no_patient_is_in_both_parts(tmp_path):
    dataset = load("isic", path=table(tmp_path), options={"benign": 0})
    patients = {part: {round(grey / 4) % 16 for grey in greys(dataset, part)} for part in ("train", "test")}
    assert not patients["train"] & patients["test"]
    assert len(patients["test"]) >= 1


def test_another_seed_of_the_split_gives_other_parts(tmp_path):
    raw = table(tmp_path)
    found = [load("isic", path=raw, options={"benign": 0, "split_seed": seed}).ids("test") for seed in (0, 2)]
    assert found[0] != found[1]


def test_benign_images_are_drawn_and_malignant_ones_all_kept(tmp_path):
    raw = table(tmp_path)
    everything, some = (load("isic", path=raw, options={"benign": count}) for count in (0, 20))
    labels = [np.concatenate([dataset.labels().train, dataset.labels().test]) for dataset in (everything, some)]
    assert [int(found.sum()) for found in labels] == [12, 12]
    assert [len(found) for found in labels] == [60, 32]
    for part in ("train", "test"):
        kept = greys(some, part)
        assert set(kept) <= set(greys(everything, part))
        assert kept == sorted(kept)  # in the order of the files
        assert np.array_equal(np.round(np.array(kept) / 4) % 5 == 0, getattr(some.labels(), part) == 1)


@pytest.mark.parametrize("archive", [False, True])
def test_a_tree_of_scaled_images_keeps_its_parts(tmp_path, archive):
    files = tree()
    if archive:
        raw = tmp_path / "isic.tar.gz"
        with tarfile.open(raw, "w:gz") as out:
            for name, content in files.items():
                info = tarfile.TarInfo(name)
                info.size = len(content)
                out.addfile(info, io.BytesIO(content))
    else:
        raw = unpacked(tmp_path / "raw", files)
    dataset = load("isic", path=raw, options={"benign": 0})
    assert dataset.labels().train.tolist() == [0] * 9 + [1] * 3
    assert dataset.labels().test.tolist() == [0] * 6 + [1] * 2
    assert greys(dataset, "train") == [5 * value for value in range(12)]
    assert greys(dataset, "test") == [5 * value for value in range(12, 20)]


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        ([line(0, "a", 1), line(0, "b", 0)], "line 3 has the image 'ISIC_0' again"),
        (["../../etc/x,a,,,,,benign,0"], r"line 2 has the image name '../../etc/x'"),
        ([line(0, "", 1)], "line 2 has no patient_id"),
        ([line(0, "a", 2)], "line 2 has the target '2'"),
        ([line(0, "a", 1), "ISIC_1,b"], "is no table of ISIC 2020: line 3 has 2 fields, 8 are needed$"),
        ([], "has 0 rows"),
        ([line(row, "one", row % 2) for row in range(10)], "its test part has 0 images"),
    ],
)
def test_a_table_that_is_wrong_is_refused_with_its_line(tmp_path, lines, text):
    with pytest.raises(DataError, match=text):
        load("isic", path=table(tmp_path, lines, rows=2), options={"benign": 0})


def test_a_table_in_utf16_or_with_semicolons_is_refused_and_a_gzipped_one_is_read(tmp_path):
    raw = table(tmp_path)
    path = raw / "train.csv"
    content = path.read_text()
    path.write_bytes(content.encode("utf-16"))
    with pytest.raises(DataError, match=r"train\.csv is text in UTF-16; convert it to UTF-8$"):
        load("isic", path=raw, options={"benign": 0})
    path.write_text(content.replace(",", ";"))
    with pytest.raises(DataError, match=r"train\.csv: fields are separated by semicolons; commas are needed$"):
        load("isic", path=raw, options={"benign": 0})
    path.unlink()
    (raw / "train.csv.gz").write_bytes(gzip.compress(content.encode()))
    assert load("isic", path=raw, options={"benign": 0}).rows("train") > 0


def test_a_photograph_that_is_missing_or_broken_is_named(tmp_path):
    raw = table(tmp_path)
    broken, content = raw / "jpeg" / "train" / "ISIC_7.jpg", image(0, kind="JPEG")
    other = "its content is not that of one$"
    for damaged, why in ((b"", other), (content[:200], ""), (image(0), other)):  # the last one is a PNG file
        broken.write_bytes(damaged)
        with pytest.raises(DataError, match=rf"ISIC_7\.jpg is no JPEG file that can be read: {why}"):
            load("isic", path=raw, options={"benign": 0})
    broken.unlink()
    with pytest.raises(DataError, match=r"ISIC_7\.jpg cannot be read: No such file"):
        load("isic", path=raw, options={"benign": 0})


def test_a_scaled_image_of_another_size_is_refused(tmp_path):
    raw = unpacked(tmp_path, tree() | {"train/benign/ISIC_001.png": image(0, (84, 83))})
    with pytest.raises(DataError, match="has 84 x 83 pixels, needed are 84 x 84"):
        load("isic", path=raw, options={"benign": 0})


def test_a_folder_without_either_form_is_refused(tmp_path):
    (tmp_path / "jpeg").mkdir()
    with pytest.raises(DataError, match=r"must hold train\.csv with jpeg/train/NAME\.jpg, or"):
        load("isic", path=tmp_path)


def test_more_benign_images_than_there_are_cannot_be_had(tmp_path):
    with pytest.raises(DataError, match="asks for 5256 images, there are 48; 0 takes all"):
        load("isic", path=table(tmp_path))
    with pytest.raises(ConfigError, match="benign"):
        load("isic", path=tmp_path, options={"benign": -1})
