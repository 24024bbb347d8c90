"""Files with the mistakes that a converter can make and that still open. A check that lets one pass checks nothing."""

import shutil
from pathlib import Path

import gguf
import numpy


def tensors(file: Path, ending: str) -> list:
    found = [tensor for tensor in gguf.GGUFReader(file, "r+").tensors if tensor.name.endswith(ending)]
    assert found, f"`{file}` has no `{ending}`"
    return found


def rotary_halves_kept(file: Path) -> None:
    """Queries and keys in the order of Hugging Face: the rotation turns the wrong pairs."""
    for ending, heads in (("attn_q.weight", "head_count"), ("attn_k.weight", "head_count_kv")):
        heads = gguf.GGUFReader(file).get_field(f"llama.attention.{heads}").contents()
        for tensor in tensors(file, ending):
            rows, columns = tensor.data.shape
            pairs = tensor.data.reshape(heads, rows // heads // 2, 2, columns)
            tensor.data[:] = pairs.swapaxes(1, 2).reshape(rows, columns).copy()


def scaling_forgotten(file: Path) -> None:
    """Llama 3's slow rotations at full speed."""
    for tensor in tensors(file, "rope_freqs.weight"):
        tensor.data[:] = 1


def matrix_untransposed(file: Path) -> None:
    """The one matrix of GPT-2 that is square, so that no shape tells."""
    for tensor in tensors(file, "attn_output.weight"):
        tensor.data[:] = tensor.data.T.copy()


def one_left_out(file: Path) -> None:
    """Gemma's norms as the checkpoint has them."""
    for tensor in tensors(file, "norm.weight"):
        tensor.data[:] -= numpy.float32(1)


MISTAKES = {
    "tiny-llama": [rotary_halves_kept, scaling_forgotten],
    "tiny-mistral": [rotary_halves_kept],
    "tiny-gpt2": [matrix_untransposed],
    "tiny-gemma": [one_left_out],
}


def spoiled(file: Path, mistake, folder: Path) -> Path:
    copy = folder / f"spoiled-{file.name}"
    shutil.copyfile(file, copy)
    mistake(copy)
    return copy
