import hashlib
import io
import os
import pickle
import struct
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from flower_vfl.data.formats import tree as trees
from flower_vfl.data.sources import cifar
from flower_vfl.data.sources.catalog import DATASETS_VARIABLE, load
from flower_vfl.errors import DataError

ROWS = 30
NAMES = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
REAL = Path(os.environ.get(DATASETS_VARIABLE, "nowhere")) / "cifar10-jpeg"


def records(name):
    """Return the labels and the pixels of a batch."""
    rng = np.random.default_rng(NAMES.index(name))
    return (np.arange(ROWS) * 7 % 10).astype(np.uint8), rng.integers(0, 256, (ROWS, 3072), dtype=np.uint8)


def binary(folder, **contents):
    folder.mkdir()
    for name in NAMES:
        labels, pixels = records(name)
        content = np.concatenate([labels[:, None], pixels], axis=1).tobytes()
        (folder / f"{name}.bin").write_bytes(contents.get(name, content))
    return folder


def text2(word):
    return b"U" + bytes([len(word)]) + word


def pickle2(labels, pixels, reconstruct=b"cnumpy.core.multiarray\n_reconstruct\n"):
    """Return a batch as Python 2 pickled it: texts and the contents of arrays are bytes."""
    numbers = b"".join(b"K" + bytes([label]) for label in labels)
    shape = b"M" + struct.pack("<H", len(pixels)) + b"M" + struct.pack("<H", pixels.shape[1]) + b"\x86"
    dtype = b"cnumpy\ndtype\n" + text2(b"u1") + b"K\x00K\x01\x87R(K\x03" + text2(b"|") + b"NNNK\x00K\x00"
    state = b"(K\x01" + shape + dtype + b"K\x00tb\x89T" + struct.pack("<i", pixels.size) + pixels.tobytes() + b"tb"
    array = reconstruct + b"cnumpy\nndarray\nK\x00\x85" + text2(b"b") + b"\x87R" + state
    return b"\x80\x02}(" + text2(b"labels") + b"](" + numbers + b"e" + text2(b"data") + array + b"u."


def pickled(folder, monkeypatch, **contents):
    folder.mkdir()
    digests = {}
    for name in NAMES:
        content = contents.get(name, pickle2(*records(name)))
        (folder / name).write_bytes(content)
        digests[name] = hashlib.md5(content).hexdigest()
    monkeypatch.setattr(cifar, "DIGESTS", digests)
    return folder


def expected(part):
    names = NAMES[:-1] if part == "train" else NAMES[-1:]
    labels, pixels = zip(*(records(name) for name in names), strict=True)
    return np.concatenate(labels), np.concatenate(pixels).reshape(-1, 3, 32, 32)


def gathered(dataset, part, rows):
    return getattr(dataset.party("image"), part).gather(rows)[0].numpy()


@pytest.mark.parametrize("version", ["binary", "python"])
@pytest.mark.parametrize("inside", [False, True])
def test_both_published_versions_give_all_images_and_labels(tmp_path, monkeypatch, version, inside):
    if version == "binary":
        folder = binary(tmp_path / "cifar-10-batches-bin")
    else:
        folder = pickled(tmp_path / "cifar-10-batches-py", monkeypatch)
    dataset = load("cifar10", path=tmp_path if inside else folder)
    assert dataset.class_names == cifar.CLASSES
    assert dataset.party("image").spec.shape == (3, 32, 32)
    for part in ("train", "test"):
        labels, pixels = expected(part)
        assert np.array_equal(getattr(dataset.labels(), part), labels)
        np.testing.assert_allclose(gathered(dataset, part, np.arange(len(labels))), pixels / 255, rtol=1e-6)
    dataset.verify()


def test_the_generated_pickle_is_one_that_numpy_reads():
    labels, pixels = records("test_batch")
    batch = pickle.loads(pickle2(labels, pixels), encoding="bytes")
    assert batch[b"labels"] == labels.tolist()
    assert np.array_equal(batch[b"data"], pixels)


def test_a_limit_and_classes_choose_among_all_batches(tmp_path):
    options = {"classes": ["cat", 5], "limit": 12}
    dataset = load("cifar10", path=binary(tmp_path / "raw"), options=options)
    assert dataset.class_names == ("cat", "dog")
    rows = np.array([int(name.removeprefix("train-")) for name in dataset.ids("train")])
    labels, pixels = expected("train")
    assert np.array_equal(np.array([3, 5])[dataset.labels().train], labels[rows])
    np.testing.assert_allclose(gathered(dataset, "train", np.arange(12)), pixels[rows] / 255, rtol=1e-6)


def test_a_pickle_that_is_not_the_published_one_is_not_read(tmp_path, monkeypatch):
    folder = pickled(tmp_path / "raw", monkeypatch)
    (folder / "data_batch_2").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    monkeypatch.setattr(cifar.pickle, "Unpickler", lambda *_, **__: pytest.fail("read"))
    with pytest.raises(DataError, match=r"data_batch_2 has the MD5 .*a pickle, which could run code, and was not read"):
        load("cifar10", path=folder)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"cos\ngetcwd\n(tR.", "it names os.getcwd"),
        (pickle2(*records("test_batch"), reconstruct=b"cnumpy\nload\n"), "it names numpy.load"),
        (pickle.dumps({b"labels": [1]}), "b'data'"),
        (pickle.dumps([1]), "cannot be read"),
        (pickle2(records("test_batch")[0][1:], records("test_batch")[1]), r"pixels uint8 \(30, 3072\) for 29 labels"),
    ],
)
def test_nothing_but_arrays_is_built_from_a_pickle(tmp_path, monkeypatch, content, text):
    folder = pickled(tmp_path / "raw", monkeypatch, test_batch=content)
    with pytest.raises(DataError, match=text):
        load("cifar10", path=folder)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "has 0 bytes; records of 3073 bytes are needed"),
        (bytes(3073 * 3 - 1), "has 9218 bytes"),
        (b"\x0a" + bytes(3072), "data_batch_3.bin: label 0 is 10, allowed are 0 to 9"),
    ],
)
def test_binary_files_that_are_damaged_are_refused(tmp_path, content, text):
    with pytest.raises(DataError, match=text):
        load("cifar10", path=binary(tmp_path / "raw", data_batch_3=content))


def test_a_file_that_is_larger_than_any_batch_is_not_read_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(cifar, "_LARGEST", ROWS * 3073 - 1)
    with pytest.raises(DataError, match=r"data_batch_1\.bin has more than 92189 bytes, 30730000 are published"):
        load("cifar10", path=binary(tmp_path / "raw"))


def test_a_missing_batch_and_a_missing_path_are_named(tmp_path):
    folder = binary(tmp_path / "raw")
    (folder / "data_batch_4.bin").unlink()
    with pytest.raises(DataError, match=r"1\.bin is a file; name the folder that holds data_batch_1 .*, unpacked if"):
        load("cifar10", path=folder / "data_batch_1.bin")
    with pytest.raises(DataError, match="must hold data_batch_1 to data_batch_5 and test_batch"):
        load("cifar10", path=folder)
    with pytest.raises(DataError, match=r"cifar10 is not here: download CIFAR-10"):
        load("cifar10")
    with pytest.raises(DataError, match=r"cifar10-jpeg is not here: set data.path"):
        load("cifar10-jpeg")


def encoded(value, size=(32, 32), **options):
    """Return an image of one grey as a JPEG file, which nearly keeps it."""
    file = io.BytesIO()
    Image.new("RGB", size, (value,) * 3).save(file, **({"format": "JPEG"} | options))
    return file.getvalue()


def tree(extra=()):
    """Return names and contents: three training images and a test image of each class, each of another grey."""
    files = {}
    for number, name in enumerate(cifar.CLASSES):
        for image in range(4):
            part, place = ("test", 0) if image == 3 else ("train", image)
            files[f"{part}/{name}/{place:04}.jpg"] = encoded(10 * number + 50 * image + 5)
    return files | dict(extra)


def as_folder(path, files):
    for name, content in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    return path


def as_archive(path, files, mode="xz"):
    with tarfile.open(path, f"w:{mode}") as archive:
        for name in reversed(files):
            info = tarfile.TarInfo(name)
            info.size = len(files[name])
            archive.addfile(info, io.BytesIO(files[name]))
    return path


def greys(dataset, part):
    images = gathered(dataset, part, np.arange(dataset.rows(part))) * 255
    return images.mean(axis=(1, 2, 3)).round().astype(int).tolist()


@pytest.mark.parametrize("how", ["folder", "xz", "gz", ""])
def test_jpeg_copies_have_one_order_in_a_folder_and_in_an_archive(tmp_path, how):
    raw = as_folder(tmp_path / "raw", tree()) if how == "folder" else as_archive(tmp_path / "raw.tar", tree(), how)
    dataset = load("cifar10-jpeg", path=raw)
    assert dataset.name == "cifar10-jpeg"
    assert np.array_equal(dataset.labels().train, np.repeat(np.arange(10), 3))
    assert greys(dataset, "train") == [10 * c + 50 * i + 5 for c in range(10) for i in range(3)]
    assert greys(dataset, "test") == [10 * c + 155 for c in range(10)]


@pytest.mark.parametrize("place", ["train", "test/ship"])
def test_a_folder_of_jpeg_files_that_may_not_be_read_is_reported_as_such(tmp_path, deny_listing, place):
    raw = as_folder(tmp_path / "raw", tree())
    deny_listing(raw / place)
    with pytest.raises(DataError, match=f"raw/{place} cannot be read: Permission denied"):
        load("cifar10-jpeg", path=raw)


def test_jpeg_files_that_are_not_chosen_are_not_decoded(tmp_path, monkeypatch):
    monkeypatch.setattr(trees, "_PIECE", 2)
    raw = as_archive(tmp_path / "raw.tar", tree({"train/frog/0001.jpg": b"broken"}.items()))
    dataset = load("cifar10-jpeg", path=raw, options={"classes": ["ship", "deer"]})
    assert greys(dataset, "train") == [45, 95, 145, 85, 135, 185]
    with pytest.raises(DataError, match=r"raw.tar/train/frog/0001.jpg is no JPEG file"):
        load("cifar10-jpeg", path=raw)


@pytest.mark.parametrize("how", ["folder", "archive"])
@pytest.mark.parametrize(
    ("files", "text"),
    [
        ({"train/unicorn/1.jpg": b""}, "holds 'train/unicorn/1.jpg'; allowed is {train,test}/class/name.jpg"),
        ({"train/cat/deep/1.jpg": b""}, "holds 'train/cat/deep/1.jpg'"),
        ({"train/cat/1.jpg": encoded(1, size=(32, 31))}, "has 32 x 31 pixels, needed are 32 x 32"),
        ({"train/cat/1.jpg": encoded(1, format="PNG")}, "is no JPEG file"),
        ({"train/cat/1.jpg": encoded(1)[:200]}, "is no JPEG file"),
        ({"test/cat/1.jpg": b""}, "is no JPEG file"),
    ],
)
def test_a_folder_or_archive_with_other_images_is_refused(tmp_path, how, files, text):
    make = as_folder if how == "folder" else as_archive
    with pytest.raises(DataError, match=text):
        load("cifar10-jpeg", path=make(tmp_path / "raw", tree(files)))


def test_other_files_beside_the_images_are_skipped(tmp_path):
    others = {"train/cat/.DS_Store": b"", "train/cat/._0000.jpg": b"", "test/.cache/a.jpg": b"", "README": b"lossy"}
    for make in (as_folder, as_archive):
        raw = make(tmp_path / make.__name__, tree(others.items()))
        assert (load("cifar10-jpeg", path=raw).rows("train"), load("cifar10-jpeg", path=raw).rows("test")) == (30, 10)


def test_a_part_without_images_and_an_image_twice_are_refused(tmp_path):
    with pytest.raises(DataError, match="holds no test images"):
        load("cifar10-jpeg", path=as_folder(tmp_path / "a", {"train/cat/1.jpg": encoded(1)}))
    twice = as_archive(tmp_path / "b.tar", tree(), "")
    with tarfile.open(twice, "a") as archive:
        archive.addfile(tarfile.TarInfo("./test/cat/0000.jpg"))
        archive.addfile(tarfile.TarInfo("test/cat/0000.jpg"))
    with pytest.raises(DataError, match=r"holds 'test/cat/0000.jpg' twice"):
        load("cifar10-jpeg", path=twice)


@pytest.mark.parametrize("content", [b"", b"no archive"])
def test_a_file_that_is_no_archive_is_refused(tmp_path, content):
    (tmp_path / "raw").write_bytes(content)
    with pytest.raises(DataError, match="raw cannot be read"):
        load("cifar10-jpeg", path=tmp_path / "raw")


@pytest.mark.parametrize("how", ["xz", "gz", "bz2", ""])
@pytest.mark.parametrize("part", [0.3, 0.6, 0.8])
def test_an_archive_that_is_cut_off_is_refused(tmp_path, how, part):
    raw = as_archive(tmp_path / "raw", tree(), how)
    content = raw.read_bytes()
    raw.write_bytes(content[: int(part * len(content)) // 512 * 512 or 300])
    with pytest.raises(DataError, match="cannot be read"):
        load("cifar10-jpeg", path=raw)


def test_an_archive_with_a_damaged_header_is_refused(tmp_path):
    raw = as_archive(tmp_path / "raw", tree(), "")
    content = bytearray(raw.read_bytes())
    content[content.index(b"train/deer/0001.jpg") + 148] ^= 1  # the check sum
    raw.write_bytes(content)
    with pytest.raises(DataError, match="cut off, or damaged behind"):
        load("cifar10-jpeg", path=raw)


@pytest.mark.slow
@pytest.mark.skipif(not REAL.exists(), reason="needs cifar10-jpeg in the folder that FLOWER_VFL_DATASETS names")
def test_the_copies_of_all_images_are_read():
    dataset = load("cifar10-jpeg", path=REAL)
    assert np.bincount(dataset.labels().train).tolist() == [5000] * 10
    assert np.bincount(dataset.labels().test).tolist() == [1000] * 10
    assert gathered(dataset, "train", np.arange(0, 50_000, 50)).mean() == pytest.approx(0.473, abs=0.01)
