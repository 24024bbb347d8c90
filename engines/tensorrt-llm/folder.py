"""A model folder for this engine: facts from its files, so that mistakes are reported within a second and not after
the library's minutes.
"""

from types import SimpleNamespace

import model_folder
from model_folder import FORMATS, first_integer, read_json, read_tensors

__all__ = ["FORMATS", "open_folder"]

# Dtype names in files, and in this project.
DTYPES = {"BF16": "bf16", "F16": "f16", "F32": "f32", "F8_E4M3": "fp8", "I8": "int8", "U8": "u8"}
BYTES = {"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "BF16": 2, "F16": 2, "I16": 2, "U16": 2}
CONFIG_DTYPES = {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}


def open_folder(path):
    """The result of `model_folder.open_folder`, with sizes, dtypes and the quantisation of the checkpoint. The
    library reads the folder itself, so every safetensors file in it counts."""
    folder = model_folder.open_folder(path)
    folder.path = folder.path.resolve()
    config, weights = folder.config, _measure(read_tensors(folder.weights))
    folder.context_tokens = first_integer(config, ("max_position_embeddings", "n_positions"))
    folder.vocabulary_size = first_integer(config, ("vocab_size",))
    folder.hidden_size = first_integer(config, ("hidden_size", "n_embd"))
    folder.compute_dtype = CONFIG_DTYPES.get(_text(config, ("dtype", "torch_dtype")))
    quantised = _quantisation(folder.path, config)
    folder.is_quantised, folder.is_fp8, folder.has_fp8_pool = quantised.any, quantised.fp8, quantised.fp8_pool
    folder.weights_dtype, folder.weights_bytes = weights.dtype, weights.bytes
    folder.parameters = None if quantised.any else weights.numbers
    return folder


def _measure(tensors):
    """Bytes and numbers of all tensors, and the dtype of most of the bytes."""
    by_dtype, numbers = {}, 0
    for tensor in tensors.values():
        by_dtype[tensor.dtype] = by_dtype.get(tensor.dtype, 0) + tensor.bytes
        numbers += tensor.bytes // BYTES.get(tensor.dtype, 1)
    largest = max(by_dtype, key=by_dtype.get, default=None)
    return SimpleNamespace(dtype=DTYPES.get(largest), bytes=sum(by_dtype.values()), numbers=numbers)


def _quantisation(path, config):
    """The quantisation of the checkpoint, from the two files that may state it."""
    file = path / "hf_quant_config.json"
    fields = read_json(file).get("quantization") if file.is_file() else config.get("quantization_config")
    fields = fields if isinstance(fields, dict) else {}
    method = str(fields.get("quant_algo") or fields.get("quant_method") or "").lower()
    pool = str(fields.get("kv_cache_quant_algo") or "").lower()
    return SimpleNamespace(any=bool(method), fp8=method.startswith("fp8"), fp8_pool=pool.startswith("fp8"))


def _text(config, names):
    return next((config[name] for name in names if isinstance(config.get(name), str)), None)
