#!/usr/bin/env python3
"""Makes a wider copy of the embedded model that computes the same function: 104,876,032 parameters.

  scripts/embedded-model/widen.py FOLDER

Engines need a larger model to show their speed, and random weights give text without sense. So this copy repeats the channels
of the trained model: each channel of the hidden state, each head and each intermediate channel. All copies hold the same number
in exact arithmetic, so the stored answers hold for the copy too. Needs only Python's standard library.
"""

import json
import shutil
import struct
import sys
from pathlib import Path

EMBEDDED = Path(__file__).resolve().parents[2] / "models" / "embedded"
COPIED_FILES = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")
ANSWERS_FILE = "reference-answers.json"

# The number of copies of each hidden channel and of each head. A power of two, so that a division is exact in bf16.
HIDDEN_COPIES = 8
# The number of copies of each intermediate channel. It only sets the size.
INTERMEDIATE_COPIES = 4

NUMBER_BYTES = 2  # bf16
EXPONENT_ONE = 1 << 7  # the lowest bit of bf16's exponent


def wide_config(config: dict) -> dict:
    copies = {
        "hidden_size": HIDDEN_COPIES,
        "num_attention_heads": HIDDEN_COPIES,
        "num_key_value_heads": HIDDEN_COPIES,
        "intermediate_size": INTERMEDIATE_COPIES,
    }
    return config | {name: config[name] * number for name, number in copies.items()}


def repeated(numbers: bytes, columns: int, row_copies: int, column_copies: int) -> bytes:
    """A matrix with its columns and its rows repeated."""
    row_bytes = columns * NUMBER_BYTES
    rows = (numbers[at : at + row_bytes] * column_copies for at in range(0, len(numbers), row_bytes))
    return b"".join(rows) * row_copies


def padded(numbers: bytes, columns: int, row_copies: int, column_copies: int) -> bytes:
    """A matrix with its rows repeated. The columns of the other copies are zero, so that each input counts once."""
    row_bytes = columns * NUMBER_BYTES
    zeros = bytes(row_bytes * (column_copies - 1))
    rows = (numbers[at : at + row_bytes] + zeros for at in range(0, len(numbers), row_bytes))
    return b"".join(rows) * row_copies


def divided(numbers: bytes, divisor: int) -> bytes:
    """Numbers in bf16 divided by a power of two."""
    steps = divisor.bit_length() - 1
    values = [value for (value,) in struct.iter_unpack("<H", numbers)]
    for value in values:
        if value & 0x7FFF and (value >> 7) & 0xFF <= steps:
            raise ValueError("a norm weight is too small to be divided exactly")
    return struct.pack(f"<{len(values)}H", *(value - steps * EXPONENT_ONE if value & 0x7FFF else value for value in values))


def wide_tensor(name: str, shape: list[int], numbers: bytes) -> tuple[list[int], bytes]:
    """The shape and the numbers of a tensor of the copy."""
    if len(shape) == 1:
        # The weights of a norm are divided, because the next matrix, or the output that is tied to the embedding, adds up all
        # copies of each channel.
        return [shape[0] * HIDDEN_COPIES], divided(numbers, HIDDEN_COPIES) * HIDDEN_COPIES
    rows, columns = shape
    kind = name.split(".")[-2]
    if kind == "embed_tokens":
        row_copies, column_copies, numbers_of = 1, HIDDEN_COPIES, repeated
    elif kind in ("q_proj", "k_proj", "v_proj"):
        # The heads are repeated as one sequence, so query head h still reads key head h // (H / K).
        row_copies, column_copies, numbers_of = HIDDEN_COPIES, HIDDEN_COPIES, repeated
    elif kind in ("gate_proj", "up_proj"):
        row_copies, column_copies, numbers_of = INTERMEDIATE_COPIES, HIDDEN_COPIES, repeated
    elif kind == "o_proj":
        row_copies, column_copies, numbers_of = HIDDEN_COPIES, HIDDEN_COPIES, padded
    elif kind == "down_proj":
        row_copies, column_copies, numbers_of = HIDDEN_COPIES, INTERMEDIATE_COPIES, padded
    else:
        raise ValueError(f"unknown tensor `{name}`")
    return [rows * row_copies, columns * column_copies], numbers_of(numbers, columns, row_copies, column_copies)


def read_tensors(path: Path) -> dict[str, tuple[list[int], bytes]]:
    """The shape and the numbers of each tensor of a file in safetensors, all in bf16."""
    content = path.read_bytes()
    data_at = 8 + int.from_bytes(content[:8], "little")
    tensors = {}
    for name, tensor in json.loads(content[8:data_at]).items():
        if name == "__metadata__":
            continue
        if tensor["dtype"] != "BF16":
            raise ValueError(f"tensor `{name}` has the dtype {tensor['dtype']}, not BF16")
        start, end = tensor["data_offsets"]
        tensors[name] = tensor["shape"], content[data_at + start : data_at + end]
    return tensors


def write_tensors(path: Path, tensors: dict[str, tuple[list[int], bytes]]) -> None:
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, (shape, numbers) in tensors.items():
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + len(numbers)]}
        at += len(numbers)
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    with path.open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        file.writelines(numbers for _, numbers in tensors.values())


def widen(to: Path) -> None:
    to.mkdir(parents=True, exist_ok=True)
    config = json.loads((EMBEDDED / "config.json").read_text())
    (to / "config.json").write_text(json.dumps(wide_config(config), indent=2) + "\n")
    for name in COPIED_FILES:
        shutil.copyfile(EMBEDDED / name, to / name)
    # The stored identity is that of the embedded weights, so the copy of the file has none.
    answers = json.loads((EMBEDDED / ANSWERS_FILE).read_text()) | {"identity": None}
    (to / ANSWERS_FILE).write_text(json.dumps(answers) + "\n")
    tensors = read_tensors(EMBEDDED / "model.safetensors")
    write_tensors(to / "model.safetensors", {name: wide_tensor(name, *tensor) for name, tensor in tensors.items()})


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] in ("-h", "--help"):
        print(__doc__.strip())
        sys.exit(0 if sys.argv[1:] in (["-h"], ["--help"]) else 2)
    widen(Path(sys.argv[1]))
