"""Makes small model folders with random weights. Has a second implementation of the decoder, in NumPy."""

import json
import math
import sys
import tempfile
from pathlib import Path

ENGINE = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ENGINE), str(ENGINE.parent / "kit" / "python")]

import numpy
import torch
from safetensors.torch import save_file

import engine_tests
from checkout import worker_command
from seeded import seeded_weights
from worker import PyTorchBaseline

CONFIG = {
    "model_type": "llama",
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "bos_token_id": 0,
    "eos_token_id": 63,
}

LLAMA3_ROPE_SCALING = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def random_weights(config, dtype=torch.float32, seed=1):
    torch.manual_seed(seed)
    hidden, inner, vocabulary = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    head_dim = config.get("head_dim", hidden // config["num_attention_heads"])
    queries, keys = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim
    shapes = {"model.embed_tokens.weight": (vocabulary, hidden), "model.norm.weight": (hidden,)}
    for index in range(config["num_hidden_layers"]):
        layer = f"model.layers.{index}."
        shapes |= {f"{layer}{name}.weight": (hidden,) for name in ("input_layernorm", "post_attention_layernorm")}
        sizes = {"q": (queries, hidden), "k": (keys, hidden), "v": (keys, hidden), "o": (hidden, queries)}
        shapes |= {f"{layer}self_attn.{name}_proj.weight": size for name, size in sizes.items()}
        if config["model_type"] == "qwen2":
            shapes |= {f"{layer}self_attn.{name}_proj.bias": sizes[name][:1] for name in "qkv"}
        sizes = {"gate": (inner, hidden), "up": (inner, hidden), "down": (hidden, inner)}
        shapes |= {f"{layer}mlp.{name}_proj.weight": size for name, size in sizes.items()}
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (vocabulary, hidden)
    # Matrices are around 0, vectors (biases too) around 1, the neutral weight of a norm.
    return {name: (torch.randn(shape) * 0.3 + (len(shape) == 1)).to(dtype) for name, shape in shapes.items()}


def make_weights(case):
    """The weights of a case of `golden.json`."""
    return {name: torch.from_numpy(array) for name, array in seeded_weights(case["config"], case["tensors"]).items()}


def write_folder(test, changes=None, weights=None, shards=None, config=CONFIG):
    """Writes a model folder, which the end of the test deletes. `changes` are config fields."""
    folder = tempfile.TemporaryDirectory()
    test.addCleanup(folder.cleanup)
    path, config = Path(folder.name), {**config, **(changes or {})}
    (path / "config.json").write_text(json.dumps(config))
    weights = random_weights(config) if weights is None else weights
    if shards is None:
        save_file(weights, path / "model.safetensors")
    else:
        names, index = sorted(weights), {}
        for number in range(shards):
            file = f"model-{number + 1:05}-of-{shards:05}.safetensors"
            shard = {name: weights[name] for name in names[number::shards]}
            save_file(shard, path / file)
            index |= dict.fromkeys(shard, file)
        (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    return path


def load(path, dtype="f32", threads=1, **fields):
    return engine_tests.load(PyTorchBaseline(), path, dtype=dtype, threads=threads, **fields)


def generate(model, prompt, max_new_tokens, **job):
    """Returns the new ids of one request."""
    (ids,) = generate_batch(model, [prompt], max_new_tokens, **job)
    return ids


generate_batch = engine_tests.generate


def logits_in_numpy(config, weights, ids):
    """Computes the decoder in float64, position by position from the definitions, with complex rotations and plain sums."""
    weights = {name: tensor.to(torch.float64).numpy() for name, tensor in weights.items()}
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head_dim = config.get("head_dim", config["hidden_size"] // heads)
    frequencies = numpy.array([expected_frequency(pair, head_dim, config) for pair in range(head_dim // 2)])

    def norm(x, name):
        return x / math.sqrt(numpy.mean(x * x) + config["rms_norm_eps"]) * weights[name]

    def linear(x, name):
        return weights[f"{name}.weight"] @ x + weights.get(f"{name}.bias", 0.0)

    def rotate(vector, position):
        half = head_dim // 2
        rotated = (vector[:half] + 1j * vector[half:]) * numpy.exp(1j * position * frequencies)
        return numpy.concatenate([rotated.real, rotated.imag])

    xs = [weights["model.embed_tokens.weight"][id] for id in ids]
    for index in range(config["num_hidden_layers"]):
        layer = f"model.layers.{index}."
        normed = [norm(x, f"{layer}input_layernorm.weight") for x in xs]
        q, k, v = ([linear(x, f"{layer}self_attn.{name}_proj").reshape(-1, head_dim) for x in normed] for name in "qkv")
        for position in range(len(ids)):
            outputs = []
            for head in range(heads):
                kv_head = head // (heads // kv_heads)
                query = rotate(q[position][head], position)
                visible = range(position + 1)
                scores = [query @ rotate(k[source][kv_head], source) / math.sqrt(head_dim) for source in visible]
                probabilities = numpy.exp(scores) / numpy.exp(scores).sum()
                outputs.append(sum(probabilities[source] * v[source][kv_head] for source in visible))
            x = xs[position] + linear(numpy.concatenate(outputs), f"{layer}self_attn.o_proj")
            mlp_input = norm(x, f"{layer}post_attention_layernorm.weight")
            gate = linear(mlp_input, f"{layer}mlp.gate_proj")
            gated = gate / (1 + numpy.exp(-gate)) * linear(mlp_input, f"{layer}mlp.up_proj")
            xs[position] = x + linear(gated, f"{layer}mlp.down_proj")
    head = weights.get("lm_head.weight", weights["model.embed_tokens.weight"])
    return numpy.array([head @ norm(x, "model.norm.weight") for x in xs])


def expected_frequency(pair, head_dim, config):
    """The frequency of one pair of dimensions, in radians a token, as Llama's authors define it."""
    frequency = config["rope_theta"] ** (-2 * pair / head_dim)
    scaling = config.get("rope_scaling")
    if scaling is None:
        return frequency
    wavelength, context = 2 * math.pi / frequency, scaling["original_max_position_embeddings"]
    if wavelength < context / scaling["high_freq_factor"]:
        return frequency
    if wavelength > context / scaling["low_freq_factor"]:
        return frequency / scaling["factor"]
    weight = (context / wavelength - scaling["low_freq_factor"]) / (scaling["high_freq_factor"] - scaling["low_freq_factor"])
    return (1 - weight) * frequency / scaling["factor"] + weight * frequency


def worker_process(**variables):
    """Returns the worker's command and its environment, with the kit on the path."""
    command, environment = worker_command("pytorch-baseline")
    return command, {**environment, **variables}
