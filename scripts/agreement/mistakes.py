"""Copies of a model folder with one mistake in each. A correct engine on the copy computes the same as an engine with that
mistake on the original, so no wrong engine is needed. Standard library only: rows of a tensor are slices of bytes."""

import json
import shutil
import struct
from pathlib import Path

ONE_BF16 = b"\x80\x3f"
# Llama 3's scaling of RoPE. `scaled` adds the context length that the model had before it was scaled.
SCALING = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


class Copy:
    """A model folder with its config and its one file of weights, to change and to write elsewhere."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        weights = (folder / "model.safetensors").read_bytes()
        (header_bytes,) = struct.unpack_from("<Q", weights)
        self.header = json.loads(weights[8:8 + header_bytes])
        self.data = bytearray(weights[8 + header_bytes:])

    def offsets(self, name: str) -> tuple[int, int]:
        return tuple(self.header[name]["data_offsets"])

    def rows(self, name: str) -> list[bytes]:
        start, end = self.offsets(name)
        count = self.header[name]["shape"][0]
        row_bytes = (end - start) // count
        return [bytes(self.data[offset:offset + row_bytes]) for offset in range(start, end, row_bytes)]

    def put(self, name: str, rows: list[bytes]) -> None:
        start, end = self.offsets(name)
        joined = b"".join(rows)
        assert len(joined) == end - start, name
        self.data[start:end] = joined

    def write(self, folder: Path) -> Path:
        folder.mkdir(parents=True)
        for file in self.folder.iterdir():
            if file.name not in ("config.json", "model.safetensors"):
                shutil.copyfile(file, folder / file.name)
        (folder / "config.json").write_text(json.dumps(self.config), encoding="utf-8")
        header = json.dumps(self.header).encode()
        header += b" " * (-len(header) % 8)
        (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + self.data)
        return folder


def tensor_name(copy: Copy, name: str, layer: int | None = None) -> str:
    """The name of a tensor, of the middle layer by default."""
    layer = copy.config["num_hidden_layers"] // 2 if layer is None else layer
    return f"model.layers.{layer}.{name}.weight"


def permuted(name: str):
    """Returns the mistake that the rows of one matrix are in reverse order."""
    def mistake(copy: Copy) -> None:
        copy.put(tensor_name(copy, name), copy.rows(tensor_name(copy, name))[::-1])
    mistake.__name__ = f"{name.rsplit('.')[-1]}_permuted"
    return mistake


def two_rows_swapped(copy: Copy) -> None:
    """Swaps two rows of a matrix, the smallest permutation. It shows how small a mistake the bounds of the verification status
    can find."""
    name = tensor_name(copy, "self_attn.q_proj")
    rows = copy.rows(name)
    copy.put(name, [rows[1], rows[0], *rows[2:]])


def a_layer_permuted(copy: Copy) -> None:
    """Reverses the rows of every matrix of one layer."""
    for name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
                 "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"):
        permuted(name)(copy)


def layers_swapped(copy: Copy) -> None:
    """Swaps the first two layers."""
    for name in [name for name in copy.header if name.startswith(first := "model.layers.0.")]:
        second = name.replace(first, "model.layers.1.")
        rows = copy.rows(name)
        copy.put(name, copy.rows(second))
        copy.put(second, rows)


def last_layer_left_out(copy: Copy) -> None:
    copy.config["num_hidden_layers"] -= 1


def rotary_pairs(copy: Copy) -> None:
    """Makes RoPE rotate pairs of neighbouring dimensions. The checkpoint has pairs of dimensions half a head apart."""
    for layer in range(copy.config["num_hidden_layers"]):
        for name, heads in (("q_proj", "num_attention_heads"), ("k_proj", "num_key_value_heads")):
            name, heads = tensor_name(copy, f"self_attn.{name}", layer), copy.config[heads]
            rows = copy.rows(name)
            head_rows = len(rows) // heads
            half = head_rows // 2
            permuted_rows = [rows[head * head_rows + index % half * 2 + index // half]
                             for head in range(heads) for index in range(head_rows)]
            copy.put(name, permuted_rows)


def a_norm_of_ones(copy: Copy) -> None:
    name = tensor_name(copy, "input_layernorm")
    copy.put(name, [ONE_BF16] * copy.header[name]["shape"][0])


def last_norm_of_ones(copy: Copy) -> None:
    copy.put("model.norm.weight", [ONE_BF16] * copy.header["model.norm.weight"]["shape"][0])


def rope_theta_wrong(copy: Copy) -> None:
    copy.config["rope_theta"] = 500000.0 if copy.config["rope_theta"] == 10000.0 else 10000.0


def scaled(original_context: int, factor: float | None = None):
    """Returns a change that is no mistake: RoPE scaling above `original_context` tokens, by `factor` (default 8)."""
    def change(copy: Copy) -> None:
        copy.config["rope_scaling"] = {**SCALING, "original_max_position_embeddings": original_context}
        if factor:
            copy.config["rope_scaling"]["factor"] = factor
    return change


def scaling_ignored(copy: Copy) -> None:
    copy.config["rope_scaling"] = None


MISTAKES = [
    *map(permuted, ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
                    "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")),
    two_rows_swapped,
    a_layer_permuted,
    layers_swapped,
    last_layer_left_out,
    rotary_pairs,
    a_norm_of_ones,
    last_norm_of_ones,
    rope_theta_wrong,
]


def copy_with(folder: Path, mistake, into: Path) -> Path:
    copy = Copy(folder)
    mistake(copy)
    return copy.write(into / f"{folder.name}-{mistake.__name__}")
