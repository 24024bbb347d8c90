"""What llama.cpp makes of a file. A program of its own, because it may end itself on a file that it does not like: it
reads one question a line, {"model": path, "sequences": ids, "texts": [...], "greedy": [ids, count]} or {"model": path,
"quantise": [dtype, path]}, and writes one answer a line. What llama.cpp says goes to stderr."""

import ctypes
import json
import os
import sys

import llama_cpp
import numpy
from llama_cpp import GGML_TYPE_F32, Llama

# What llama.cpp calls a file in these blocks, and the blocks.
BLOCKS = {
    "q4_0": (llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0, llama_cpp.GGML_TYPE_Q4_0),
    "q8_0": (llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0, llama_cpp.GGML_TYPE_Q8_0),
    "q4_k": (llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_K_S, llama_cpp.GGML_TYPE_Q4_K),
    "q6_k": (llama_cpp.LLAMA_FTYPE_MOSTLY_Q6_K, llama_cpp.GGML_TYPE_Q6_K),
}


def log_probabilities(model: Llama, ids: list[int]) -> list[float]:
    """Of each id but the first, given those before it."""
    model.reset()
    model.eval(ids)
    logits = numpy.array(model.scores[: len(ids)], dtype=numpy.float64)  # [tokens, vocabulary]
    logits -= logits.max(axis=1, keepdims=True)
    logits -= numpy.log(numpy.exp(logits).sum(axis=1, keepdims=True))
    return [float(row[following]) for row, following in zip(logits, ids[1:])]


def greedy(model: Llama, prompt: list[int], count: int) -> list[int]:
    model.reset()
    ids, following = [], prompt
    for _ in range(count):
        model.eval(following)
        following = [int(numpy.argmax(model.scores[model.n_tokens - 1]))]
        ids += following
    return ids


def quantise(path: str, dtype: str, out: str) -> None:
    """By llama.cpp itself, every matrix in the same blocks."""
    settings = llama_cpp.llama_model_quantize_default_params()
    settings.ftype, block = BLOCKS[dtype]
    settings.pure, settings.nthread = True, 1
    settings.token_embedding_type = settings.output_tensor_type = block
    if llama_cpp.llama_model_quantize(path.encode(), out.encode(), ctypes.byref(settings)) != 0:
        raise RuntimeError(f"cannot make `{dtype}` of `{path}`")


def answer(question: dict) -> dict:
    if "quantise" in question:
        quantise(question["model"], *question["quantise"])
        return {}
    # All that could add a difference of its own is switched to plain f32: the cache, and attention step by step.
    model = Llama(
        question["model"], n_ctx=512, n_batch=512, n_threads=1, n_threads_batch=1, logits_all=True,
        type_k=GGML_TYPE_F32, type_v=GGML_TYPE_F32, flash_attn=False, vocab_only=question.get("vocab_only", False),
    )
    # `add_bos` is llama.cpp's "as the file says", and not "always".
    told = {"ids": [model.tokenize(text.encode(), add_bos=True, special=True) for text in question.get("texts", [])]}
    told["scores"] = [log_probabilities(model, ids) for ids in question.get("sequences", [])]
    if "greedy" in question:
        told["greedy"] = greedy(model, *question["greedy"])
    model.close()
    return told


if __name__ == "__main__":
    # Libraries may print; the answers have the real stdout to themselves.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        try:
            told = answer(json.loads(line))
        except Exception as error:
            told = {"failed": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(told) + "\n")
        answers.flush()
