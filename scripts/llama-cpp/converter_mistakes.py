"""Makes GGUF files with the mistakes of a converter. llama.cpp opens these files, and the check must find each mistake."""

import shutil
from pathlib import Path

import gguf
import numpy


def tensors(file: Path, ending: str) -> list:
    tensors = [tensor for tensor in gguf.GGUFReader(file, "r+").tensors if tensor.name.endswith(ending)]
    assert tensors, f"`{file}` has no `{ending}`"
    return tensors


def rotary_halves_kept(file: Path) -> None:
    """Stores queries and keys in the order of Hugging Face, so that the wrong pairs are rotated."""
    for ending, heads in (("attn_q.weight", "head_count"), ("attn_k.weight", "head_count_kv")):
        heads = gguf.GGUFReader(file).get_field(f"llama.attention.{heads}").contents()
        for tensor in tensors(file, ending):
            rows, columns = tensor.data.shape
            pairs = tensor.data.reshape(heads, rows // heads // 2, 2, columns)
            tensor.data[:] = pairs.swapaxes(1, 2).reshape(rows, columns).copy()


def scaling_forgotten(file: Path) -> None:
    """Stores Llama 3's frequencies without their scaling."""
    for tensor in tensors(file, "rope_freqs.weight"):
        tensor.data[:] = 1


def matrix_untransposed(file: Path) -> None:
    """Leaves a matrix untransposed: the only square matrix of GPT-2, so that its shape does not show the mistake."""
    for tensor in tensors(file, "attn_output.weight"):
        tensor.data[:] = tensor.data.T.copy()


def one_left_out(file: Path) -> None:
    """Stores Gemma's norms as in the checkpoint, without the added 1."""
    for tensor in tensors(file, "norm.weight"):
        tensor.data[:] -= numpy.float32(1)


MISTAKES = {
    "tiny-llama": [rotary_halves_kept, scaling_forgotten],
    "tiny-mistral": [rotary_halves_kept],
    "tiny-gpt2": [matrix_untransposed],
    "tiny-gemma": [one_left_out],
}


def copy_with(file: Path, mistake, folder: Path) -> Path:
    copy = folder / f"mistake-{file.name}"
    shutil.copyfile(file, copy)
    mistake(copy)
    return copy
