"""Small models with random weights, in the exporter's files. The kit's `engine_tests` has what the tests of several engines share."""

import os
import sys
from pathlib import Path
from types import SimpleNamespace

ENGINE = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ENGINE), str(ENGINE.parent / "kit" / "python")]
# transformers prints what it reads, and asks the network for updates.
os.environ["HF_HUB_OFFLINE"] = "1"
sys.modules["openvino_telemetry"] = None

import torch
from transformers import AutoConfig, AutoModelForCausalLM

import convert
import engine_tests
from checkout import use_program
from worker import OpenVINO

use_program("openvino-engine")

SIZES = dict(vocab_size=97, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=512, bos_token_id=0, eos_token_id=1, pad_token_id=0)
LLAMA_3 = dict(rope_type="llama3", rope_theta=5e5, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
               original_max_position_embeddings=128)

_models = {}


def random_model(name="llama", architecture="llama", dtype="f32", **fields):
    """A model of transformers with random weights, and the same model as `folder` (safetensors) and `converted` (by `convert.py`
    in this dtype). The model of a name is made once."""
    key = (name, dtype)
    if key not in _models:
        torch.manual_seed(len(_models))
        config = AutoConfig.for_model(architecture, **{**SIZES, **fields})
        network = AutoModelForCausalLM.from_config(config).float().eval()
        for parameter_name, weights in network.named_parameters():
            # transformers initialises weights so small that attention hardly matters.
            scale = 0.5 if "norm" in parameter_name else 4 / weights.shape[-1] ** 0.5
            weights.data.copy_((torch.rand_like(weights) - 0.5) * scale + (1 if "norm" in parameter_name else 0))
        folder, converted = (engine_tests.scratch() / name for name in ("model", "converted"))
        network.save_pretrained(folder)
        convert.main(folder, dtype, converted)
        _models[key] = SimpleNamespace(network=network, folder=folder, converted=converted)
    return _models[key]


def scores_of_transformers(network, ids):
    """The log-probabilities of `ids[1:]`."""
    with torch.no_grad():
        logits = network(torch.tensor([ids])).logits[0].double()  # [tokens, vocabulary]
    return torch.log_softmax(logits, -1)[range(len(ids) - 1), ids[1:]].tolist()


def greedy_ids_of_transformers(network, prompt, new_tokens):
    """Computes greedy ids by a forward pass over the whole sequence for every token."""
    ids = list(prompt)
    for _ in range(new_tokens):
        with torch.no_grad():
            ids.append(int(network(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(prompt) :]


def load_model(made, options=None, dtype="f32", **fields):
    """Loads a model as the worker does, from its converted folder."""
    engine, convert = OpenVINO(), "loading.convert_folder"
    return engine_tests.load_converted(engine, convert, made.folder, made.converted, options, dtype=dtype, **fields)
