"""Makes GGUF files with typical mistakes of a converter. llama.cpp opens these files, and compare.py must find each mistake."""

import shutil
from pathlib import Path

import gguf
import numpy


def tensors(file: Path, ending: str) -> list:
    """The writable tensors whose names have this ending."""
    matching = [tensor for tensor in gguf.GGUFReader(file, "r+").tensors if tensor.name.endswith(ending)]
    assert matching, f"`{file}` has no `{ending}`"
    return matching


def keep_rotary_halves(file: Path) -> None:
    """Stores queries and keys in the order of Hugging Face, so that the wrong pairs are rotated."""
    for ending, key in (("attn_q.weight", "head_count"), ("attn_k.weight", "head_count_kv")):
        heads = gguf.GGUFReader(file).get_field(f"llama.attention.{key}").contents()
        for tensor in tensors(file, ending):
            rows, columns = tensor.data.shape
            pairs = tensor.data.reshape(heads, rows // heads // 2, 2, columns)
            tensor.data[:] = pairs.swapaxes(1, 2).reshape(rows, columns).copy()


def omit_rope_scaling(file: Path) -> None:
    """Stores Llama 3's frequencies without their scaling."""
    for tensor in tensors(file, "rope_freqs.weight"):
        tensor.data[:] = 1


def omit_transposition(file: Path) -> None:
    """Leaves one matrix of each layer of GPT-2 untransposed: the only square one, so its shape does not show the mistake."""
    for tensor in tensors(file, "attn_output.weight"):
        tensor.data[:] = tensor.data.T.copy()


def omit_norm_offset(file: Path) -> None:
    """Stores Gemma's norms as in the checkpoint, without adding 1."""
    for tensor in tensors(file, "norm.weight"):
        tensor.data[:] -= numpy.float32(1)


MISTAKES = {
    "tiny-llama": [keep_rotary_halves, omit_rope_scaling],
    "tiny-mistral": [keep_rotary_halves],
    "tiny-gpt2": [omit_transposition],
    "tiny-gemma": [omit_norm_offset],
}


def copy_with(file: Path, mistake, folder: Path) -> Path:
    copy = folder / f"mistake-{file.name}"
    shutil.copyfile(file, copy)
    mistake(copy)
    return copy
