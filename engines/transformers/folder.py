"""A model folder for this engine: the common reading of Python engines, the tensors in its files, and the sizes that
requests are checked against. This file reads only fields that all architectures have.
"""

import re

import model_folder
from engine_kit import Failed
from model_folder import FORMATS, INDEX, SINGLE_FILE, first_integer, read_tensors

__all__ = ["FORMATS", "open_folder"]

# Names of the same field in configs of different families.
CONTEXT = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length", "n_ctx")
HIDDEN = ("hidden_size", "n_embd", "d_model")
LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")

# Layers of the text model, not of an image or audio encoder.
LAYER = re.compile(r"(?:model\.|language_model\.|transformer\.|decoder\.|gpt_neox\.)*(?:layers|h)\.(\d+)\.")


def open_folder(path):
    """The result of `model_folder.open_folder`, with `tensors`, `context_tokens` (None if the config has none),
    `vocabulary_size`, `hidden_size`."""
    folder = model_folder.open_folder(path)
    if folder.architecture is None:
        raise Failed("model", f"`{folder.path / 'config.json'}`: `model_type` is missing")
    text = folder.config.get("text_config")
    text = text if isinstance(text, dict) else folder.config
    _refuse_quantised(folder.config, text)
    if not folder.is_indexed:
        folder.weights = [_single_file(folder)]
    folder.tensors = read_tensors(folder.weights)
    folder.context_tokens = first_integer(text, CONTEXT)
    folder.vocabulary_size = first_integer(text, ("vocab_size",))
    folder.hidden_size = first_integer(text, HIDDEN)
    _check_layers(folder, text)
    _check_ids(folder)
    return folder


def _refuse_quantised(*configs):
    """Refuses a quantised checkpoint: `transformers` would pass it to another library, and the row would not state it."""
    for config in configs:
        if (quantization := config.get("quantization_config")) is not None:
            method = quantization.get("quant_method") if isinstance(quantization, dict) else quantization
            message = f"`config.json`: the weights are already quantised (`{str(method)[:80]}`), and this engine loads plain ones"
            raise Failed("unsupported", message, "load the folder that it was made from, with `--set quantize=int4`")


def _check_layers(folder, text):
    """Refuses a file with more layers than the network: it is another model, and `transformers` ignores the others
    silently."""
    layers = first_integer(text, LAYERS)
    # Models with encoder and decoder count their layers separately.
    if layers is None or "decoder_layers" in text:
        return
    field = next(name for name in LAYERS if text.get(name) is not None)
    # Layers for multi-token prediction come last, and plain decoding leaves them out.
    extra = text.get("num_nextn_predict_layers")
    layers_stated = layers + (extra if type(extra) is int else 0)
    for number in sorted({int(match[1]) for name in folder.tensors if (match := LAYER.match(name))}):
        if number >= layers_stated:
            raise Failed("model", f"model `{folder.name}` has tensors of layer {number}, and `{field}` is {layers}")


def _check_ids(folder):
    """Checks BOS and EOS ids: an EOS beyond the vocabulary never occurs, and a BOS beyond it has no embedding."""
    size = folder.vocabulary_size
    for field, ids in (("bos_token_id", [folder.bos_id]), ("eos_token_id", folder.eos_ids)):
        for id in ids:
            if None not in (size, id) and id >= size:
                raise Failed("model", f"model `{folder.name}`: `{field}` {id} is outside its vocabulary of {size}")


def _single_file(folder):
    """Checks the file names: `transformers` opens only a file of this name, or an index."""
    if folder.path / SINGLE_FILE not in folder.weights:
        name = folder.weights[0].name
        raise Failed("model", f"`{folder.path}` has `{name}`, but neither `{SINGLE_FILE}` nor `{INDEX}`")
    return folder.path / SINGLE_FILE
