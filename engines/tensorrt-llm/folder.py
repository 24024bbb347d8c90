"""Reads the facts of a model folder, without the library. So a broken folder is refused in a second, not after minutes."""

from types import SimpleNamespace

import model_folder
from model_folder import NUMBER_BYTES, dimensions, first_integer, read_json, read_tensors

# This project's dtype names, by their names in weight files and in `config.json`.
FILE_DTYPES = {"BF16": "bf16", "F16": "f16", "F32": "f32", "F8_E4M3": "fp8", "I8": "int8", "U8": "u8"}
CONFIG_DTYPES = {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}


def open_folder(path):
    """Opens a model folder, and adds sizes, dtypes and the quantization of the weights."""
    folder = model_folder.open_folder(path)
    folder.path = folder.path.resolve()
    config, weights = folder.config, _total_size(read_tensors(folder.weights))
    folder.context_tokens = first_integer(config, ("max_position_embeddings", "n_positions"))
    folder.vocabulary_size = first_integer(config, ("vocab_size",))
    folder.hidden_size = first_integer(config, ("hidden_size", "n_embd"))
    folder.dimensions = dimensions(config)
    folder.compute_dtype = CONFIG_DTYPES.get(_first_string(config, ("dtype", "torch_dtype")))
    quantized = _quantization(folder.path, config)
    folder.is_quantized, folder.is_fp8, folder.has_fp8_kv = quantized.any, quantized.fp8, quantized.fp8_kv
    folder.weights_dtype, folder.weights_bytes = weights.dtype, weights.bytes
    folder.parameters = None if quantized.any else weights.parameters
    return folder


def _total_size(tensors):
    """The bytes and the parameters of all tensors, and the dtype of most of the bytes."""
    by_dtype, parameters = {}, 0
    for tensor in tensors.values():
        by_dtype[tensor.dtype] = by_dtype.get(tensor.dtype, 0) + tensor.bytes
        parameters += tensor.bytes // NUMBER_BYTES.get(tensor.dtype, 1)
    main_dtype = max(by_dtype, key=by_dtype.get, default=None)
    return SimpleNamespace(dtype=FILE_DTYPES.get(main_dtype), bytes=sum(by_dtype.values()), parameters=parameters)


def _quantization(path, config):
    """The quantization of the weights, from `hf_quant_config.json` if it exists, else from `config.json`."""
    file = path / "hf_quant_config.json"
    fields = read_json(file).get("quantization") if file.is_file() else config.get("quantization_config")
    fields = fields if isinstance(fields, dict) else {}
    method = str(fields.get("quant_algo") or fields.get("quant_method") or "").lower()
    kv_cache = str(fields.get("kv_cache_quant_algo") or "").lower()
    return SimpleNamespace(any=bool(method), fp8=method.startswith("fp8"), fp8_kv=kv_cache.startswith("fp8"))


def _first_string(config, names):
    return next((config[name] for name in names if isinstance(config.get(name), str)), None)
