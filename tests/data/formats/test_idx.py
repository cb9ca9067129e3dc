import gzip
import struct

import numpy as np
import pytest

from flower_vfl.data.formats.idx import read_idx
from flower_vfl.errors import DataError

IMAGES = np.arange(3 * 4 * 5, dtype=np.uint8).reshape(3, 4, 5)


def idx_bytes(array, *, magic=None, sizes=None):
    """Return an idx file as specified: magic, one big-endian size a dimension, the bytes."""
    magic = 0x800 + array.ndim if magic is None else magic
    sizes = array.shape if sizes is None else sizes
    return struct.pack(f">{1 + len(sizes)}I", magic, *sizes) + array.tobytes()


def write(path, content, *, zipped=False):
    path.write_bytes(gzip.compress(content) if zipped else content)
    return path


@pytest.mark.parametrize("zipped", [False, True])
def test_images_and_labels_are_read_as_they_were_written(tmp_path, zipped):
    path = write(tmp_path / "images", idx_bytes(IMAGES), zipped=zipped)
    labels = write(tmp_path / "labels", idx_bytes(np.array([7, 0, 255], np.uint8)), zipped=zipped)
    assert np.array_equal(read_idx(path, (4, 5)), IMAGES)
    assert read_idx(labels, ()).tolist() == [7, 0, 255]


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "has 0 bytes, its header alone 16"),
        (idx_bytes(IMAGES)[:15], "has 15 bytes, its header alone 16"),
        (idx_bytes(IMAGES, magic=0x801), "magic number 0x801, needed is 0x803"),
        (idx_bytes(IMAGES, magic=0xD03), "magic number 0xd03, needed is 0x803"),
        (idx_bytes(IMAGES.astype("<u4"), magic=0x03080000), "magic number 0x3080000"),
        (idx_bytes(IMAGES, sizes=(3, 5, 4)), r"3 items of shape \(5, 4\); needed: .* of \(4, 5\)"),
        (idx_bytes(IMAGES, sizes=(0, 4, 5)), "0 items"),
        (idx_bytes(IMAGES, sizes=(2**32 - 1, 4, 5)), "4294967295 items of .* needed: 1 to 1000000"),
        (idx_bytes(IMAGES)[:-1], "60 bytes, but holds only 59"),
        (idx_bytes(IMAGES) + b"x", "60 bytes, but holds more"),
        (idx_bytes(IMAGES, sizes=(2, 4, 5)), "40 bytes, but holds more"),
    ],
    ids=["empty", "header cut", "labels", "floats", "little endian", "shape", "none", "many", "cut", "longer", "fewer"],
)
def test_a_file_that_is_not_the_expected_one_is_refused(tmp_path, content, text, zipped):
    with pytest.raises(DataError, match=text):
        read_idx(write(tmp_path / "file", content, zipped=zipped), (4, 5))


def test_a_damaged_gzip_file_and_a_missing_one_are_refused(tmp_path):
    zipped = gzip.compress(idx_bytes(IMAGES))
    for number, content in enumerate((zipped[:-12], zipped[:12], zipped[:20] + b"\xff" * 20 + zipped[40:])):
        with pytest.raises(DataError, match="cannot be read"):
            read_idx(write(tmp_path / f"{number}", content), (4, 5))
    with pytest.raises(DataError, match="cannot be read"):
        read_idx(tmp_path / "absent", (4, 5))


def test_a_gzip_bomb_is_not_unpacked_beyond_what_its_header_promises(tmp_path, monkeypatch):
    read = []

    class Counting(gzip.GzipFile):
        def read(self, size=-1):
            content = super().read(size)
            read.append(len(content))
            return content

    bomb = write(tmp_path / "bomb", idx_bytes(IMAGES) + bytes(50_000_000), zipped=True)
    monkeypatch.setattr(gzip, "GzipFile", Counting)
    with pytest.raises(DataError, match="holds more"):
        read_idx(bomb, (4, 5))
    assert sum(read) == 2 * 16 + 60 + 1  # the header twice
