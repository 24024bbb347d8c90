"""The folder that mistral.rs reads: the model's config and weights, with a tokenizer of ids.

mistral.rs's Python package takes and gives only text. In this folder every id has a text of its own, `#17`, so the text of a
prompt is its ids and the text of an answer is its ids. The model's own tokenizer is not used, and no special id is added,
hidden or joined with another one.
"""

import json
import os
import re
from pathlib import Path

from engine_kit import Failed

# The architectures that mistral.rs reads by the `architectures` of a config, and for which the output was compared with a
# reference. `model_type` is their name.
ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3", "phi3", "gemma")

# The tensor of an output matrix that is not the embedding.
OUTPUT_MATRIX = "lm_head.weight"

MARK = "#"
ID = re.compile(re.escape(MARK) + "([0-9]+)")

# A chat template whose text is the content of the message: mistral.rs streams only chats.
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def text_of(ids):
    return "".join(f"{MARK}{id}" for id in ids)


def ids_of(text):
    """The ids in a text. Raises `Failed` if the text is anything else than ids."""
    ids = [int(found) for found in ID.findall(text)]
    if text_of(ids) != text:
        raise Failed("internal", f"mistral.rs gave the text {text[:80]!r}, which is not ids")
    return ids


def write(target, folder, vocabulary_size):
    """Makes the folder at `target`: links to the weights of the model, its config, and the tokenizer of ids. `folder` has the
    names of its tensors too."""
    target = Path(target)
    for file in [*folder.weights, *folder.path.glob("*.safetensors.index.json")]:
        os.symlink(file.resolve(), target / file.name)
    (target / "config.json").write_text(json.dumps(explicit(folder.config, folder.tensors)))
    (target / "tokenizer.json").write_text(json.dumps(_tokenizer(vocabulary_size)))
    # mistral.rs loads no model without an EOS. The kit decides where a sequence ends, so which id this is has no effect.
    end = next((id for id in folder.eos_ids if id < vocabulary_size), vocabulary_size - 1)
    config = {"bos_token": None, "eos_token": text_of([end]), "chat_template": TEMPLATE}
    (target / "tokenizer_config.json").write_text(json.dumps(config))


def explicit(config, tensors):
    """The config with the fields that mistral.rs needs and that a config may leave out: whether the output matrix is the
    embedding, the layers of Qwen without a sliding window, and the rotation of positions in its older form."""
    config = dict(config)
    if config.get("model_type") in ("qwen2", "qwen3"):
        # Without `use_sliding_window`, no layer has a window, and the number has no effect.
        config.setdefault("use_sliding_window", False)
        config.setdefault("max_window_layers", config.get("num_hidden_layers"))
    if config.get("tie_word_embeddings") is None:
        config["tie_word_embeddings"] = OUTPUT_MATRIX not in tensors
    rotation = config.pop("rope_parameters", None)
    if isinstance(rotation, dict):
        rotation = dict(rotation)
        config["rope_theta"] = rotation.pop("rope_theta", config.get("rope_theta", 10000.0))
        if "partial_rotary_factor" in rotation:
            config["partial_rotary_factor"] = rotation.pop("partial_rotary_factor")
        config["rope_scaling"] = None if rotation.get("rope_type", "default") == "default" else rotation
    return config


def _tokenizer(vocabulary_size):
    pattern = {"Regex": re.escape(MARK) + "[0-9]+"}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
        "model": {
            "type": "WordLevel",
            "vocab": {text_of([id]): id for id in range(vocabulary_size)},
            "unk_token": text_of([0]),
        },
    }
