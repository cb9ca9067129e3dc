"""Small files in the formats of Criteo and Avazu, and a slow reader of them."""

import csv
import gzip
import random

NUMBERS = [f"I{number}" for number in range(1, 14)]
CATEGORIES = [f"C{number}" for number in range(1, 27)]
AVAZU = [
    *("id", "click", "hour", "C1", "banner_pos", "site_id", "site_domain", "site_category", "app_id", "app_domain"),
    *("app_category", "device_id", "device_ip", "device_model", "device_type", "device_conn_type"),
    *(f"C{number}" for number in range(14, 22)),
]


def criteo_rows(count, seed=0):
    """Return rows of 40 texts; some values are frequent, some occur once, some are missing."""
    draw = random.Random(seed)
    rows = []
    for _ in range(count):
        counts = ["" if draw.random() < 0.2 else str(int(draw.expovariate(0.02)) - 2) for _ in NUMBERS]
        values = [
            "" if draw.random() < 0.1 else f"{draw.choice([draw.randrange(3), draw.randrange(2**32)]):08x}"
            for _ in CATEGORIES
        ]
        rows.append([str(int(draw.random() < 0.3)), *counts, *values])
    return rows


def avazu_rows(count, seed=0, days=3):
    """Return rows of 24 texts in time order; the IDs have up to 20 digits."""
    draw = random.Random(seed)
    rows = []
    for number in range(count):
        hour = f"1410{21 + number * days // count:02}{number * days * 24 // count % 24:02}"
        row = [str(10**19 + draw.randrange(8 * 10**18)), str(int(draw.random() < 0.2)), hour, "1005", "0"]
        row += [f"{draw.choice([7, draw.randrange(2**32)]):08x}" for _ in range(9)]
        rows.append([*row, *(str(draw.choice([-1, 0, 1, 320, draw.randrange(10**5)])) for _ in range(10))])
    return rows


def write_lines(path, rows, *, delimiter, header=(), ending="\n"):
    """Write rows; a name that ends in .gz is gzipped."""
    lines = [delimiter.join(row) for row in ([list(header)] if header else []) + rows]
    data = (ending.join(lines) + ending).encode("latin-1")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def write_criteo(path, rows, **options):
    """Write rows in the layout that belongs to the name."""
    if path.name.removesuffix(".gz").endswith(".csv"):
        numbered = [[str(10_000_000 + number), *row] for number, row in enumerate(rows)]
        return write_lines(path, numbered, delimiter=",", header=["Id", "Label", *NUMBERS, *CATEGORIES], **options)
    return write_lines(path, rows, delimiter="\t", **options)


def write_avazu(path, rows):
    """Write rows in the published layout."""
    return write_lines(path, rows, delimiter=",", header=AVAZU)


def read_back(path, delimiter):
    """Return rows as texts, read by Python's own reader."""
    with path.open(newline="") as file:
        return list(csv.reader(file, delimiter=delimiter))
