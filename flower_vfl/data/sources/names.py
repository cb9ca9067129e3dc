"""Names of the data sets and the class of each; importing this module loads no large one."""

from __future__ import annotations

from flower_vfl.errors import lookup

RECIPE_CLASSES = {
    "census-income": "census:CensusIncome",
    "mnist": "mnist:Mnist",
    "mnist-5000": "mnist:SomeDigits",
    "fashion-mnist": "mnist:FashionMnist",
    "cifar10": "cifar:Cifar10",
    "cifar10-jpeg": "cifar:Cifar10Jpeg",
    "isic": "isic:Isic",
    "criteo": "criteo:Criteo",
    "avazu": "avazu:Avazu",
    "files": "own_files:Files",
    "flights": "flights:Flights",
    "breast-cancer": "sklearn_datasets:BreastCancer",
    "digits": "sklearn_datasets:Digits",
    "dbpedia": "dbpedia:Dbpedia",
    "dbpedia-5000": "dbpedia:Dbpedia5000",
    "wordnet-glosses": "wordnet:WordnetGlosses",
    "synthetic": "synthetic:Synthetic",
    "toy-gap": "toy:ToyGap",
    "toy-hemispheres": "toy:ToyHemispheres",
}
"""Module in this package and class of each data set, by its name."""


def check_name(name: str) -> None:
    """Refuse the name of an unknown data set.

    Raises
    ------
    ConfigError
        When the name is unknown; the message has the nearest ones.
    """
    lookup("data set", name, RECIPE_CLASSES)
