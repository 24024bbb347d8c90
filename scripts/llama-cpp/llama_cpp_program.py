"""Answers requests with llama.cpp. This is a separate program, because llama.cpp may abort on a file.

A request is a line: {"model": path, "sequences": [ids, ...], "texts": [...], "greedy": [ids, count]} or {"model": path,
"quantize": [dtype, output path]}. Each answer is a line. The messages of llama.cpp go to stderr."""

import ctypes
import json
import os
import sys

import llama_cpp
import numpy
from llama_cpp import GGML_TYPE_F32, Llama

# By dtype: llama.cpp's type of a file, and ggml's type of a tensor.
QUANTIZED_TYPES = {
    "q4_0": (llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0, llama_cpp.GGML_TYPE_Q4_0),
    "q8_0": (llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0, llama_cpp.GGML_TYPE_Q8_0),
    "q4_k": (llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_K_S, llama_cpp.GGML_TYPE_Q4_K),
    "q6_k": (llama_cpp.LLAMA_FTYPE_MOSTLY_Q6_K, llama_cpp.GGML_TYPE_Q6_K),
}


def log_probabilities(model: Llama, ids: list[int]) -> list[float]:
    """The log-probability of each id after the first, given the previous ones."""
    model.reset()
    model.eval(ids)
    logits = numpy.array(model.scores[: len(ids)], dtype=numpy.float64)  # [tokens, vocabulary]
    logits -= logits.max(axis=1, keepdims=True)
    logits -= numpy.log(numpy.exp(logits).sum(axis=1, keepdims=True))
    return [float(row[next_id]) for row, next_id in zip(logits, ids[1:])]


def greedy(model: Llama, prompt: list[int], count: int) -> list[int]:
    model.reset()
    ids, input_ids = [], prompt
    for _ in range(count):
        model.eval(input_ids)
        input_ids = [int(numpy.argmax(model.scores[model.n_tokens - 1]))]
        ids += input_ids
    return ids


def quantize(path: str, dtype: str, out: str) -> None:
    """Quantizes with llama.cpp itself, every matrix to the same type."""
    settings = llama_cpp.llama_model_quantize_default_params()
    settings.ftype, tensor_type = QUANTIZED_TYPES[dtype]
    settings.pure, settings.nthread = True, 1
    settings.token_embedding_type = settings.output_tensor_type = tensor_type
    if llama_cpp.llama_model_quantize(path.encode(), out.encode(), ctypes.byref(settings)) != 0:
        raise RuntimeError(f"cannot quantize `{path}` to `{dtype}`")


def answer(request: dict) -> dict:
    if "quantize" in request:
        quantize(request["model"], *request["quantize"])
        return {}
    # The cache is f32 and attention is not fused, so that neither adds a difference.
    model = Llama(
        request["model"], n_ctx=512, n_batch=512, n_threads=1, n_threads_batch=1, logits_all=True,
        type_k=GGML_TYPE_F32, type_v=GGML_TYPE_F32, flash_attn=False,
    )
    # With `add_bos` llama.cpp adds a BOS only if the file requests it.
    answers = {"ids": [model.tokenize(text.encode(), add_bos=True, special=True) for text in request.get("texts", [])]}
    answers["scores"] = [log_probabilities(model, ids) for ids in request.get("sequences", [])]
    if "greedy" in request:
        answers["greedy"] = greedy(model, *request["greedy"])
    model.close()
    return answers


if __name__ == "__main__":
    # Libraries may print, so their stdout becomes stderr. `out` is the real stdout.
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        try:
            result = answer(json.loads(line))
        except Exception as error:
            result = {"failed": f"{type(error).__name__}: {error}"}
        out.write(json.dumps(result) + "\n")
        out.flush()
