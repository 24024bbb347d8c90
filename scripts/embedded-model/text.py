"""Writes the training text and the held-out text. Both depend only on their seeds.

One blank line separates two documents, and no document contains a blank line.
"""

import hashlib
import sys
from pathlib import Path

from draw import Draw
from household import letter, recipe, sale, shed, shop, sums
from long_documents import animal, lesson, register, ships_log, treasure_hunt, word_list
from narratives import diary, mystery, song, journey, visit, walk

TRAIN_SEED, HELDOUT_SEED = 20_250_101, 77_003
TRAIN_BYTES, HELDOUT_BYTES = 22_500_000, 100_000

# The kinds of documents, and the weight of each in the random choice.
KINDS = [(journey, 12), (letter, 9), (register, 8), (ships_log, 8), (visit, 7), (diary, 7), (animal, 6), (lesson, 6),
         (mystery, 6), (treasure_hunt, 6), (recipe, 5), (shop, 5), (shed, 5), (sale, 4), (word_list, 4), (song, 3), (walk, 3), (sums, 2)]
WEIGHTED_KINDS = [kind for kind, weight in KINDS for _ in range(weight)]


def document(seed: int, index: int) -> str:
    d = Draw(seed, index)
    return d.pick(WEIGHTED_KINDS)(d)


def documents(seed: int, at_least_bytes: int):
    """Documents 0, 1, 2, ... of a seed until they and the blank lines between them reach the size."""
    size = index = 0
    while size < at_least_bytes:
        text = document(seed, index)
        size, index = size + len(text) + 2, index + 1
        yield text


def write(path: Path, texts: list) -> str:
    content = ("\n\n".join(texts) + "\n").encode()
    path.write_bytes(content)
    return hashlib.sha256(content).hexdigest()


def split(content: str) -> list:
    """The documents of a file that `write` wrote."""
    return content.strip("\n").split("\n\n")


def main(train_path: str, heldout_path: str) -> None:
    train = list(documents(TRAIN_SEED, TRAIN_BYTES))
    heldout = list(documents(HELDOUT_SEED, HELDOUT_BYTES))
    train_documents = set(train)
    assert not train_documents & set(heldout), "a held-out document is also a training document"
    # Documents may differ in a single word, so long lines are compared, too.
    train_lines = {line for text in train for line in text.split("\n")}
    lines = [line for text in heldout for line in text.split("\n") if len(line) >= 100]
    repeated = sum(line in train_lines for line in lines)
    for name, path, texts in [("train", train_path, train), ("heldout", heldout_path, heldout)]:
        print(f"{name}: {len(texts)} documents, {sum(map(len, texts))} characters, sha256 {write(Path(path), texts)}")
    print(f"held-out documents in train: 0; held-out lines of 100 characters or more in train: {repeated} of {len(lines)}")
    assert repeated == 0, "a long held-out line is also a training line"


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
