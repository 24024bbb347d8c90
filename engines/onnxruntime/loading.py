"""A load: makes the library's model of a converted folder, and reads the configuration in effect. Imports the library."""

import importlib.metadata
import json
import os
import platform

import onnxruntime_genai as genai

import checkpoint
from engine_kit import Failed, count_threads
from graph import read_graph
from model import OnnxModel, Special


def load(request, folder, path, phases):
    with phases.time("graph"):
        graph = read_graph(path)
    special = Special(pad=folder.vocabulary_size - 1, end=folder.vocabulary_size - 2)
    with phases.time("weights"):
        threads_before = count_threads()
        model = make_model(path, special, request.threads)
        # The library starts its threads with the model. The calling thread computes too.
        threads = count_threads() - threads_before + 1
    facts = {
        "device": model.device_type.lower(),
        "weights_dtype": graph.weights_dtype,
        "compute_dtype": graph.compute_dtype,
        "kv_dtype": graph.kv_dtype,
        "threads": threads,
        "use_cache": True,
        "prefix_cache": False,
        "weights_bytes": graph.weights_bytes,
        **checkpoint.facts(folder),
        "libraries": {
            "python": platform.python_version(),
            **{name: importlib.metadata.version(name) for name in ("onnxruntime-genai", "onnxruntime")},
        },
        "file": os.fspath(path / "model.onnx"),
    }
    return OnnxModel(folder, model, special, facts)


def make_model(path, special, threads):
    """The library's model. Without a number of threads, the library has one for each core."""
    settings = {"model": {"eos_token_id": [special.end], "pad_token_id": special.pad}}
    if threads is not None:
        settings["model"]["decoder"] = {"session_options": {"intra_op_num_threads": threads}}
    try:
        config = genai.Config(os.fspath(path))
        config.overlay(json.dumps(settings))
        return genai.Model(config)
    except RuntimeError as error:
        raise Failed("model", f"`{path}`: {str(error)[:300]}") from None
