"""Arrays and folders of images as a party's own data: rows in the shared order, and damaged files."""

import io
import zipfile

import numpy as np
import pytest
from PIL import Image

from flower_vfl import build_config, run
from flower_vfl.data.sources.catalog import load, prepare
from flower_vfl.data.sources.id_sources import id_sources
from flower_vfl.errors import ConfigError, DataError

ROWS = 40
IDS = np.array([f"p{number:03d}" for number in range(ROWS)])


def values(dtype=np.float32, shape=(2, 3)):
    """Return rows that identify their ID: each entry is six times its number, plus 0 to 6."""
    within = np.arange(int(np.prod(shape))).reshape(shape) % 7
    return (np.arange(ROWS).reshape(-1, *(1 for _ in shape)) * 6 + within).astype(dtype)


def npz(path, order=None, **arrays):
    order = np.arange(ROWS) if order is None else order
    np.savez(path, **{name: array[order] for name, array in ({"id": IDS} | arrays).items()})
    return str(path)


def labels(path):
    rows = [f"{name},{'yes' if number % 3 else 'no'}" for number, name in enumerate(IDS)]
    path.write_text("\n".join(["id,label", *reversed(rows)]) + "\n")
    return str(path)


def picture(number, size=(10, 8), kind="PNG"):
    file = io.BytesIO()
    Image.new("RGB", size, (6 * number,) * 3).save(file, kind)
    return file.getvalue()


def pictures(folder, inside=lambda _: "", size=lambda _: (10, 8)):
    for number, name in enumerate(IDS):
        path = folder / inside(number) / f"{name}.{'JPG' if number % 2 else 'png'}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture(number, size(number), "JPEG" if number % 2 else "PNG"))
    return str(folder)


def gathered(dataset):
    """Return all rows of party a by ID."""
    found = {}
    for part in ("train", "test"):
        rows = getattr(dataset.party("a"), part).gather(np.arange(dataset.rows(part)))[0].numpy()
        found |= dict(zip(dataset.ids(part), rows, strict=True))
    return found


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.int16, np.uint8])
def test_rows_of_an_array_file_are_those_of_their_ids(tmp_path, kind):
    order = np.random.default_rng(0).permutation(ROWS)
    files = {"a": npz(tmp_path / "a.npz", order, x=values(kind))}
    dataset = load("files", options={"files": files, "labels_file": labels(tmp_path / "labels.csv"), "positive": "yes"})
    assert dataset.party("a").spec.shape == (2, 3)
    assert dataset.party("a").spec.pixels == (kind == np.uint8)
    scale = 255 if kind == np.uint8 else 1
    for name, row in gathered(dataset).items():
        np.testing.assert_allclose(row * scale, values()[int(name[1:])], rtol=1e-6, atol=1e-5)
    for part in ("train", "test"):
        expected = [int(int(name[1:]) % 3 > 0) for name in dataset.ids(part)]
        assert getattr(dataset.labels(), part).tolist() == expected


def test_an_array_file_can_hold_the_labels_too(tmp_path):
    file = npz(tmp_path / "a.npz", x=values(), label=np.arange(ROWS) % 2)
    dataset = load("files", options={"files": {"a": file}})
    assert dataset.label_party == "a"
    assert dataset.labels().train.tolist() == [int(name[1:]) % 2 for name in dataset.ids("train")]


def test_the_order_of_bytes_in_an_array_file_does_not_matter(tmp_path):
    found = []
    for order in "<>":
        column = {"id": np.arange(ROWS).astype(f"{order}i8"), "label": (np.arange(ROWS) % 2).astype(f"{order}f4")}
        np.savez(tmp_path / "a.npz", x=values().astype(f"{order}f8"), **column)
        dataset = load("files", options={"files": {"a": str(tmp_path / "a.npz")}})
        found.append((gathered(dataset)["7"].tolist(), dataset.ids("test"), dataset.labels().train.tolist()))
    assert found[0] == found[1]


@pytest.mark.parametrize("kind", ["c16", "g", "i4,i4", "M8[Y]"])
def test_labels_of_an_array_file_that_are_neither_numbers_nor_texts_are_refused(tmp_path, kind):
    file = npz(tmp_path / "a.npz", x=values(), label=np.zeros(ROWS, kind))
    with pytest.raises(DataError, match=r"a\.npz: 'label' is of type .*; make it numbers or texts"):
        load("files", options={"files": {"a": file}})


@pytest.mark.parametrize("nested", [False, True])
def test_images_are_found_by_name_and_folders_are_labels(tmp_path, nested):
    folder = pictures(
        tmp_path / "photos", (lambda number: "ill" if number % 4 == 0 else "well") if nested else lambda _: ""
    )
    options = {"files": {"a": folder}, "positive": "ill" if nested else "yes"}
    options |= {} if nested else {"labels_file": labels(tmp_path / "labels.csv")}
    dataset = load("files", options=options)
    assert dataset.party("a").spec.shape == (3, 8, 10)
    for name, row in gathered(dataset).items():
        assert np.abs(row * 255 - 6 * int(name[1:])).max() <= 1.5  # JPEG nearly keeps a grey
    if nested:
        assert dataset.labels().test.tolist() == [int(int(name[1:]) % 4 == 0) for name in dataset.ids("test")]


@pytest.mark.parametrize("size", [(), (8, 10)])
def test_greys_of_16_bits_are_scaled_to_8(tmp_path, size):
    ramp = np.linspace(0, 65535, 80).reshape(8, 10)
    (tmp_path / "scans").mkdir()
    for name in IDS:
        Image.fromarray(ramp.astype(np.uint16)).save(tmp_path / "scans" / f"{name}.png")
    options = {"files": {"a": str(tmp_path / "scans")}, "labels_file": labels(tmp_path / "labels.csv")}
    dataset = load("files", options=options | {"image_size": size})
    row = gathered(dataset)["p007"]
    assert row.shape == (3, 8, 10)
    assert np.abs(row * 65535 - ramp).max() <= 65535 / 255 / 2 + 1


@pytest.mark.parametrize("size", [[6, 5], "6,5", "[6, 5]"])
def test_images_of_several_sizes_are_scaled_where_a_size_is_given(tmp_path, size):
    folder = pictures(tmp_path / "photos", size=lambda number: (10 + number, 30 - number // 2))
    options = {"files": {"a": folder}, "labels_file": labels(tmp_path / "labels.csv")}
    dataset = load("files", options=options | {"image_size": size})
    assert dataset.party("a").spec.shape == (3, 6, 5)
    for name, row in gathered(dataset).items():
        assert np.abs(row * 255 - 6 * int(name[1:])).max() <= 1.5
    with pytest.raises(
        DataError, match=r"p00\d\.\w+ has 1\d x \d+ pixels, needed are 10 x 30; scale all .* option image_size$"
    ):
        load("files", options=options)
    with pytest.raises(ConfigError, match="a height and a width"):
        load("files", options=options | {"image_size": [6]})


def test_a_network_trains_on_images_of_one_party_and_a_table_of_another(tmp_path):
    (tmp_path / "b.csv").write_text(
        "id,age,label\n" + "".join(f"{name},{20 + i},{i % 2}\n" for i, name in enumerate(IDS))
    )
    options = {"files": {"a": pictures(tmp_path / "photos"), "b": str(tmp_path / "b.csv")}}
    config = build_config(
        {
            "data": {"name": "files", "options": options},
            "model": {"channels": [2], "cut": 2, "top": [4]},
            "training": {"epochs": 1, "batch_size": 8},
        }
    )
    assert run(config).status == "finished"


def shop(path, lacking):
    """Write a table of another party, which has no row of the first `lacking` people."""
    rows = [f"{name},{number},{number % 2}" for number, name in enumerate(IDS)]
    path.write_text("\n".join(["id,spent,label", *rows[lacking:]]) + "\n")
    return str(path)


@pytest.mark.parametrize("kind", ["arrays", "images"])
@pytest.mark.parametrize("lacking", [0, 4])
def test_arrays_and_images_of_people_whom_others_lack_stay_in_their_partys_folder(tmp_path, kind, lacking):
    a = npz(tmp_path / "a.npz", x=values(np.uint8)) if kind == "arrays" else pictures(tmp_path / "photos")
    files = {"a": a, "shop": shop(tmp_path / "shop.csv", lacking)}
    dataset = prepare("files", out=tmp_path / "out", options={"files": files, "label_party": "shop", "join": "inner"})
    dataset.verify()
    assert len(gathered(dataset)) == ROWS - lacking
    unaligned = dataset.party("a").unaligned
    assert (0 if unaligned is None else len(unaligned)) == lacking
    if lacking:
        found = unaligned.gather(np.arange(lacking))[0].numpy() * 255
        for number, row in enumerate(found):
            expected = values()[number] if kind == "arrays" else 6.0 * number
            assert np.abs(row - expected).max() <= 1.5
    assert dataset.labels().unaligned is None


def test_images_with_labels_of_people_whom_others_lack_keep_known_ones(tmp_path):
    folder = pictures(tmp_path / "photos", lambda number: "odd" if number == 1 else "ill" if number % 2 else "well")
    other = tmp_path / "shop.csv"
    other.write_text("id,spent\n" + "".join(f"{name},{number}\n" for number, name in enumerate(IDS) if number > 3))
    dataset = load("files", options={"files": {"a": folder, "shop": str(other)}, "label": "label", "join": "inner"})
    names = [dataset.class_names[label] for label in dataset.labels().unaligned]
    assert names == ["ill", "well", "well"]  # 3, 0 and 2 of 0 to 3, by folder: training knows no class "odd"
    kept = dataset.party("a").unaligned.gather(np.arange(3))[0][:, 0, 0, 0].numpy() * 255
    assert np.abs(kept - [18, 0, 12]).max() <= 1.5


def test_a_damaged_image_of_a_person_whom_others_lack_leaves_out_unaligned_rows_only(tmp_path, caplog):
    folder = pictures(tmp_path / "photos")
    (tmp_path / "photos" / f"{IDS[2]}.png").write_bytes(picture(2)[:40])
    files = {"a": folder, "shop": shop(tmp_path / "shop.csv", 4)}
    dataset = prepare("files", out=tmp_path / "out", options={"files": files, "label_party": "shop", "join": "inner"})
    assert dataset.party("a").unaligned is None
    assert not (tmp_path / "out" / "a" / "unaligned").exists()
    assert "whose people others lack are not used" in caplog.text
    assert len(gathered(dataset)) == ROWS - 4


def test_pre_training_reads_images_of_people_whom_others_lack(tmp_path):
    files = {"a": pictures(tmp_path / "photos"), "shop": shop(tmp_path / "shop.csv", 8)}
    settings = {
        "data": {"name": "files", "options": {"files": files, "label_party": "shop", "join": "inner"}},
        "model": {"channels": [2], "cut": 2, "top": [4]},
        "training": {"epochs": 1, "batch_size": 8, "pretrain": 1},
    }
    weights = [run(build_config(settings)).summary["weights"]]
    for number in range(8):
        next((tmp_path / "photos").glob(f"{IDS[number]}.*")).unlink()
    weights.append(run(build_config(settings)).summary["weights"])
    assert weights[0] != weights[1]
    settings["training"]["pretrain"] = 0
    without = run(build_config(settings)).summary["weights"]
    pictures(tmp_path / "photos")
    assert run(build_config(settings)).summary["weights"] == without


def test_ids_of_arrays_and_images_can_be_aligned(tmp_path):
    files = {"a": npz(tmp_path / "a.npz", x=values()), "b": pictures(tmp_path / "photos")}
    party, sources = id_sources(None, {"files": files, "labels_file": labels(tmp_path / "labels.csv")})
    assert party == "label"
    assert all(source.read() == IDS.tolist() for source in sources.values())


@pytest.mark.parametrize(
    ("arrays", "text"),
    [
        ({"x": values(), "y": values()}, "one array of several dimensions, the features, it holds 2: x, y"),
        ({"x": np.arange(ROWS)}, "it holds 0: only id, x"),
        ({"x": np.array([["a"]] * ROWS)}, "of type <U1; make them numbers"),
        ({"x": np.where(np.arange(ROWS) == 6, np.nan, 1.0).reshape(ROWS, 1)}, r"/a\.npz: row 7 .* 'x' .* not finite"),
        ({"x": np.full((ROWS, 2), 1e39)}, r"/a\.npz: row \d+ .* 'x' .* not finite in float32; correct it"),
        ({"x": values()[:, :0]}, "nothing is there"),
    ],
)
def test_array_files_that_are_wrong_are_refused(tmp_path, arrays, text):
    with pytest.raises(DataError, match=text):
        load(
            "files",
            options={"files": {"a": npz(tmp_path / "a.npz", **arrays)}, "labels_file": labels(tmp_path / "l.csv")},
        )


def test_a_column_of_another_length_is_refused(tmp_path):
    np.savez(tmp_path / "a.npz", id=IDS[:-1], x=values())
    with pytest.raises(DataError, match=r"'id' has the shape \(39,\)"):
        load("files", options={"files": {"a": str(tmp_path / "a.npz")}, "label": ""})


def test_an_array_file_without_ids_is_refused(tmp_path):
    np.savez(tmp_path / "a.npz", person=IDS, x=values())
    with pytest.raises(DataError, match=r"no array 'id', the ID of each row; it holds person, x\. Add one \(numpy"):
        load("files", options={"files": {"a": str(tmp_path / "a.npz")}, "label": ""})


@pytest.mark.parametrize("damage", ["encrypted", "lzma"])
def test_an_array_file_that_is_encrypted_or_damaged_inside_is_refused(tmp_path, damage):
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA if damage == "lzma" else zipfile.ZIP_STORED) as archive:
        content = io.BytesIO()
        np.save(content, IDS)
        archive.writestr("id.npy", content.getvalue())
    data = bytearray(path.read_bytes())
    if damage == "lzma":
        data[60:90] = bytes(30)
    else:
        data[6] |= 1
        data[data.index(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"a\.npz is no \.npz file of plain arrays"):
        load("files", options={"files": {"a": str(path)}, "label": ""})


def test_objects_in_an_array_file_are_not_built(tmp_path):
    class Spy:
        def __reduce__(self):
            return (pytest.fail, ("built",))

    np.savez(tmp_path / "a.npz", id=IDS, x=np.array([[Spy()]] * ROWS, dtype=object))
    with pytest.raises(DataError, match=r"no \.npz file of plain arrays"):
        load("files", options={"files": {"a": str(tmp_path / "a.npz")}, "label": ""})
    (tmp_path / "a.npz").write_bytes(b"PK\x03\x04 no")
    with pytest.raises(DataError, match=r"no \.npz file of plain arrays"):
        load("files", options={"files": {"a": str(tmp_path / "a.npz")}, "label": ""})


def test_folders_that_are_wrong_are_refused(tmp_path):
    options = {"labels_file": labels(tmp_path / "labels.csv")}
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="holds no image"):
        load("files", options=options | {"files": {"a": str(tmp_path / "empty")}})
    folder = tmp_path / "photos"
    pictures(folder)
    (folder / "p002.png").write_bytes(b"no")
    with pytest.raises(DataError, match=r"p002\.png is no PNG file"):
        load("files", options=options | {"files": {"a": str(folder)}})
    (folder / "more").mkdir()
    (folder / "more" / "x.png").write_bytes(picture(1))
    with pytest.raises(DataError, match="images beside folders of images"):
        load("files", options=options | {"files": {"a": str(folder)}})


def test_an_image_that_exists_as_jpg_and_as_png_is_refused(tmp_path):
    folder = tmp_path / "photos"
    pictures(folder)
    (folder / "p001.png").write_bytes(picture(1))
    with pytest.raises(DataError, match=r"occur more than once, p001\.JPG and p001\.png; rename or remove one"):
        load("files", options={"files": {"a": str(folder)}, "labels_file": labels(tmp_path / "labels.csv")})


def test_images_of_one_name_in_two_classes_are_refused(tmp_path):
    pictures(tmp_path / "photos", inside=lambda number: str(number % 2))
    (tmp_path / "photos/0/p001.png").write_bytes(picture(1))
    with pytest.raises(DataError, match=r"photos: images of one ID occur more than once, 0/p001\.png and 1/p001\.JPG"):
        load("files", options={"files.a": str(tmp_path / "photos")})


def test_hidden_files_beside_images_are_skipped(tmp_path):
    folder = tmp_path / "photos"
    pictures(folder)
    (folder / "._p001.png").write_bytes(b"notes of a file manager")
    (folder / ".thumbnails").mkdir()
    (folder / ".thumbnails" / "p001.png").write_bytes(picture(1))
    options = {"files": {"a": str(folder)}, "labels_file": labels(tmp_path / "labels.csv")}
    assert len(gathered(load("files", options=options))) == ROWS


def test_a_file_without_arrays_with_ids_is_refused(tmp_path):
    path = tmp_path / "a.npz"
    with path.open("wb") as file:
        np.save(file, values())
    with pytest.raises(DataError, match=r"a\.npz is one array without IDs; write both .* with numpy\.savez"):
        load("files", options={"files.a": str(path)})
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("notes.txt", "no array")
    with pytest.raises(DataError, match=r"a\.npz holds 'notes\.txt', which is no array"):
        load("files", options={"files.a": str(path)})


def test_training_and_test_rows_of_different_shapes_are_refused(tmp_path):
    npz(tmp_path / "train.npz", x=values(), label=np.arange(ROWS) % 2)
    np.savez(tmp_path / "test.npz", id=[f"q{i}" for i in range(4)], x=np.ones((4, 5)), label=[0, 1, 0, 1])
    options = {"files": {"a": str(tmp_path / "train.npz")}, "test_files": {"a": str(tmp_path / "test.npz")}}
    with pytest.raises(DataError, match="hold rows of different shapes"):
        load("files", options=options)


@pytest.mark.parametrize("place", ["photos", "photos/0"])
def test_a_folder_of_images_that_may_not_be_read_is_reported_as_such(tmp_path, deny_listing, place):
    names = {"files.a": pictures(tmp_path / "photos", inside=lambda number: str(number % 2))}
    deny_listing(tmp_path / place)
    with pytest.raises(DataError, match=rf"{place} cannot be read: Permission denied"):
        load("files", options=names)
