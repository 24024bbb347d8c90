"""Checks the files with the reader that llama.cpp publishes for Python: names, shapes, types and every number, by its own
tables and formulas."""

import functools
import json
from pathlib import Path

import gguf
import numpy


# Cached, because it reads every token of a vocabulary in Python, and each file is read more than once.
read = functools.lru_cache(maxsize=4)(gguf.GGUFReader)


def safetensors(folder: Path) -> dict[str, numpy.ndarray]:
    """Every tensor of a folder in f32, by name."""
    tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        content = numpy.memmap(path, dtype=numpy.uint8, mode="r")
        begin = 8 + int(content[:8].view("<u8")[0])
        for name, entry in json.loads(bytes(content[8:begin])).items():
            if name == "__metadata__":
                continue
            if entry["dtype"] != "F32":
                raise ValueError(f"`{path}`: `{name}` is {entry['dtype']}, expected F32")
            start, end = entry["data_offsets"]
            tensors[name] = content[begin + start : begin + end].view("<f4").reshape(entry["shape"])
    return tensors


def problems(file: Path, folder: Path, dtype: str) -> list[str]:
    """Compares `file` with `folder`, the same model in f32, by llama.cpp's tables. Returns a line for each difference."""
    reader = read(file)
    architecture = reader.get_field("general.architecture").contents()
    known = {name: key for key, name in gguf.MODEL_ARCH_NAMES.items()}
    layers = reader.get_field(f"{architecture}.block_count").contents()
    names = gguf.get_tensor_name_map(known[architecture], layers)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    lines = []
    for name, values in safetensors(folder).items():
        expected_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
        tensor = tensors.pop(expected_name, None)
        if tensor is None:
            lines.append(f"`{name}` should be `{expected_name}`, which is missing")
            continue
        is_f32 = values.ndim == 1 or expected_name == "position_embd.weight"
        expected = "F32" if is_f32 else dtype.upper()
        if tensor.tensor_type.name != expected:
            lines.append(f"`{expected_name}` is {tensor.tensor_type.name}, expected {expected}")
        numbers = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        numbers = as_hugging_face(reader, architecture, expected_name, numbers)
        if numbers.shape != values.shape:
            lines.append(f"`{expected_name}` has the shape {numbers.shape}, expected {values.shape}")
        elif not numpy.array_equal(numbers, values):
            difference = numpy.abs(numbers - values).max()
            lines.append(f"`{expected_name}` has other numbers than `{name}`, by up to {difference:.1e}")
    # This tensor is computed from the config; no checkpoint has it.
    tensors.pop("rope_freqs.weight", None)
    lines += [f"`{name}` is not a tensor of the model" for name in tensors]
    return lines


def errors(original: Path, converted: Path, reference: Path) -> list[tuple[float, float, bool]]:
    """For each tensor in blocks: the error of our blocks, the error of llama.cpp's blocks, and whether both have the same bytes."""
    exact, our_blocks, their_blocks = (
        {tensor.name: tensor for tensor in read(file).tensors} for file in (original, converted, reference)
    )
    results = []
    for name, tensor in our_blocks.items():
        reference_tensor = their_blocks[name]
        if tensor.tensor_type == gguf.GGMLQuantizationType.F32:
            continue
        if tensor.tensor_type != reference_tensor.tensor_type:
            raise ValueError(f"`{name}` is {tensor.tensor_type.name}, llama.cpp has it as {reference_tensor.tensor_type.name}")
        pair = []
        for blocks in (tensor, reference_tensor):
            numbers = gguf.quants.dequantize(blocks.data, blocks.tensor_type)
            pair.append(float(numpy.sqrt(numpy.square(numbers - exact[name].data).mean(dtype=numpy.float64))))
        results.append((*pair, numpy.array_equal(tensor.data, reference_tensor.data)))
    return results


def as_hugging_face(reader, architecture: str, name: str, numbers: numpy.ndarray) -> numpy.ndarray:
    """Converts back to the checkpoint's layout: halves of heads instead of pairs, transposed matrices, norms minus one."""
    if architecture == "llama" and name.endswith(("attn_q.weight", "attn_k.weight")):
        key = "llama.attention.head_count" + ("_kv" if "attn_k" in name else "")
        heads = reader.get_field(key).contents()
        rows, columns = numbers.shape
        return numbers.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)
    if architecture == "gpt2" and name.startswith("blk.") and numbers.ndim == 2:
        return numbers.T
    if architecture == "gemma" and name.endswith("norm.weight"):
        return numbers - numpy.float32(1)
    return numbers
