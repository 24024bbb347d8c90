"""Small model folders with random weights, and functions to load models and to generate."""

import json
import sys
import tempfile
from pathlib import Path

ENGINE = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ENGINE), str(ENGINE.parent / "kit" / "python")]

# As in the worker, this comes before the import of PyTorch.
from environment import prepare_environment

prepare_environment(1)

import engine_tests

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
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


def random_weights(config, seed=1):
    import torch

    torch.manual_seed(seed)
    hidden, inner, vocabulary = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    kv_rows = config["num_key_value_heads"] * (hidden // config["num_attention_heads"])
    projections = {"q": hidden, "k": kv_rows, "v": kv_rows}
    shapes = {"model.embed_tokens.weight": (vocabulary, hidden), "model.norm.weight": (hidden,)}
    for index in range(config["num_hidden_layers"]):
        layer = f"model.layers.{index}."
        shapes |= {f"{layer}{name}.weight": (hidden,) for name in ("input_layernorm", "post_attention_layernorm")}
        shapes |= {f"{layer}self_attn.{name}_proj.weight": (rows, hidden) for name, rows in projections.items()}
        shapes[f"{layer}self_attn.o_proj.weight"] = (hidden, hidden)
        shapes |= {f"{layer}mlp.{name}_proj.weight": (inner, hidden) for name in ("gate", "up")}
        shapes[f"{layer}mlp.down_proj.weight"] = (hidden, inner)
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (vocabulary, hidden)
    # The mean is 1 for the weights of norms, and 0 for matrices.
    return {name: torch.randn(shape) * 0.3 + (len(shape) == 1) for name, shape in shapes.items()}


def write_folder(test, changes=None, weights=None, shards=None, tokenizer_words=None, **files):
    """Writes a model folder, which the end of the test deletes. `changes`: fields of the config. `shards`: the number of weight
    files. `tokenizer_words`: the number of words of a tokenizer. `files`: stems and contents of other JSON files."""
    from safetensors.torch import save_file

    folder = tempfile.TemporaryDirectory()
    test.addCleanup(folder.cleanup)
    path, config = Path(folder.name), {**CONFIG, **(changes or {})}
    (path / "config.json").write_text(json.dumps(config))
    weights = random_weights(config) if weights is None else weights
    if shards is None:
        save_file(weights, path / "model.safetensors", {"format": "pt"})
    else:
        names, index = sorted(weights), {}
        for number in range(shards):
            file = f"model-{number + 1:05}-of-{shards:05}.safetensors"
            shard = {name: weights[name] for name in names[number::shards]}
            save_file(shard, path / file, {"format": "pt"})
            index |= dict.fromkeys(shard, file)
        (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    if tokenizer_words is not None:
        write_tokenizer(path, tokenizer_words)
    for stem, content in files.items():
        (path / f"{stem}.json").write_text(json.dumps(content))
    return path


def write_network(test, config):
    """Writes a model folder of any architecture with random weights. The end of the test deletes it."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    folder = tempfile.TemporaryDirectory()
    test.addCleanup(folder.cleanup)
    torch.manual_seed(3)
    fields = {name: value for name, value in config.items() if name not in ("model_type", "architectures")}
    network = AutoModelForCausalLM.from_config(AutoConfig.for_model(config["model_type"], **fields))
    for parameter in network.parameters():
        # The initial biases and norms of `transformers` would have no effect.
        torch.nn.init.normal_(parameter, 1.0 if parameter.ndim == 1 else 0.0, 0.25)
    network.save_pretrained(folder.name)
    # Replaces the config of the library, which has the form of newer checkpoints, by one in the form of older checkpoints.
    (Path(folder.name) / "config.json").write_text(json.dumps(config))
    return Path(folder.name)


def write_tokenizer(path, word_count):
    """Writes a tokenizer with the words `w0`, `w1`, ... The id of a word is its number."""
    vocabulary = {f"w{id}": id for id in range(word_count)}
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "w0"}
    tokenizer = {"version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "Whitespace"}, "model": model}
    (path / "tokenizer.json").write_text(json.dumps(tokenizer))


def load(path, options=None, threads=1, **fields):
    from worker import Transformers

    return engine_tests.load(Transformers(), path, options, threads=threads, **fields)
