"""Checks GGUF files with the reader that llama.cpp publishes for Python. The reader has its own tables of names and its own
formulas for quantization blocks, so it checks names, shapes, types and every number independently."""

import functools
import json
from pathlib import Path

import gguf
import numpy


# Cached, because the reader is slow for large vocabularies, and each file is read more than once.
read_gguf = functools.lru_cache(maxsize=4)(gguf.GGUFReader)


def read_safetensors(folder: Path) -> dict[str, numpy.ndarray]:
    """Every tensor of a folder in f32, by name."""
    tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        content = numpy.memmap(path, dtype=numpy.uint8, mode="r")
        data_start = 8 + int(content[:8].view("<u8")[0])
        for name, entry in json.loads(bytes(content[8:data_start])).items():
            if name == "__metadata__":
                continue
            if entry["dtype"] != "F32":
                raise ValueError(f"`{path}`: `{name}` is {entry['dtype']}, expected F32")
            start, end = entry["data_offsets"]
            tensors[name] = content[data_start + start : data_start + end].view("<f4").reshape(entry["shape"])
    return tensors


def problems(file: Path, folder: Path, dtype: str) -> list[str]:
    """Compares `file` with `folder`, which has the same weights in f32. Returns a line for each difference."""
    reader = read_gguf(file)
    architecture = reader.get_field("general.architecture").contents()
    architectures = {name: key for key, name in gguf.MODEL_ARCH_NAMES.items()}
    layers = reader.get_field(f"{architecture}.block_count").contents()
    gguf_names = gguf.get_tensor_name_map(architectures[architecture], layers)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    lines = []
    for name, values in read_safetensors(folder).items():
        expected_name = gguf_names.get_name(name, try_suffixes=(".weight", ".bias"))
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
    # The converter computes this tensor from the config, so no checkpoint has it.
    tensors.pop("rope_freqs.weight", None)
    lines += [f"`{name}` is not a tensor of the model" for name in tensors]
    return lines


def errors(original: Path, ours: Path, theirs: Path) -> list[tuple[float, float, bool]]:
    """For each quantized tensor: the root mean square error in `ours` (by `orchestrate`) and in `theirs` (by llama.cpp), and
    whether the two tensors have the same bytes."""
    exact, our_tensors, their_tensors = (
        {tensor.name: tensor for tensor in read_gguf(file).tensors} for file in (original, ours, theirs)
    )
    results = []
    for name, tensor in our_tensors.items():
        their_tensor = their_tensors[name]
        if tensor.tensor_type == gguf.GGMLQuantizationType.F32:
            continue
        if tensor.tensor_type != their_tensor.tensor_type:
            raise ValueError(f"`{name}` is {tensor.tensor_type.name}, llama.cpp has it as {their_tensor.tensor_type.name}")
        both_errors = []
        for quantized in (tensor, their_tensor):
            numbers = gguf.quants.dequantize(quantized.data, quantized.tensor_type)
            both_errors.append(float(numpy.sqrt(numpy.square(numbers - exact[name].data).mean(dtype=numpy.float64))))
        results.append((*both_errors, numpy.array_equal(tensor.data, their_tensor.data)))
    return results


def as_hugging_face(reader, architecture: str, name: str, numbers: numpy.ndarray) -> numpy.ndarray:
    """Converts numbers of GGUF to the layout of the checkpoint. GGUF stores the rows of a rotated llama head as neighbouring
    pairs, the checkpoint as two halves. GGUF transposes gpt2's matrices, and adds one to gemma's norms."""
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
