import numpy as np

from flower_vfl.data.sources.catalog import load


def test_breast_cancer_has_two_parties_of_fifteen_columns():
    dataset = load("breast-cancer")
    assert dataset.parties == ("a", "b")
    assert dataset.label_party == "b"
    assert [dataset.party(party).spec.numeric for party in "ab"] == [15, 15]
    assert dataset.alignment.rows + dataset.alignment.test_rows == 569
    labels = dataset.labels()
    assert int(labels.train.sum() + labels.test.sum()) == 212
    assert dataset.class_names == ("0", "1")
    dataset.verify()


def test_digits_are_cut_into_halves_that_fit_together():
    from sklearn.datasets import load_digits

    dataset = load("digits")
    rows = np.array([int(value) for value in dataset.ids("test")])
    raw = load_digits()
    left, right = (dataset.party(party) for party in ("left", "right"))
    assert left.spec.shape == (1, 8, 4)
    images = np.concatenate([half.test.gather(np.arange(len(rows)))[0].numpy() for half in (left, right)], axis=3)
    assert np.array_equal(images[:, 0] * 16, raw.images[rows])
    assert np.array_equal(dataset.labels().test, raw.target[rows])
    assert dataset.classes == 10
    assert dataset.label_party not in dataset.parties


def test_one_digit_can_be_classified_against_the_rest():
    all_ten, sevens = load("digits"), load("digits", options={"positive": 7})
    assert sevens.classes == 2
    assert sevens.alignment == all_ten.alignment
    assert np.array_equal(sevens.labels().train, all_ten.labels().train == 7)
