"""A model folder as this engine needs it: beside what every Python engine reads of one, the tensors in its files, and the
sizes that requests are checked against. What an architecture is, `transformers` knows; here only those words of a config
are read that every architecture has.
"""

import re

import model_folder
from engine_kit import Failed
from model_folder import FORMATS, INDEX, WHOLE, first_whole, read_tensors

__all__ = ["FORMATS", "open_folder"]

# What the same thing is called in configs of different families.
CONTEXT = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length", "n_ctx")
HIDDEN = ("hidden_size", "n_embd", "d_model")
LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")

# Layers of the text, and not of a tower for pictures or sound beside it.
LAYER = re.compile(r"(?:model\.|language_model\.|transformer\.|decoder\.|gpt_neox\.)*(?:layers|h)\.(\d+)\.")


def open_folder(path):
    """What `model_folder.open_folder` gives, and `tensors`, `context_tokens` (None where the config does not say),
    `vocabulary_size`, `hidden_size`."""
    folder = model_folder.open_folder(path)
    if folder.architecture is None:
        raise Failed("model", f"`{folder.path / 'config.json'}`: `model_type` is missing")
    text = folder.config.get("text_config")
    text = text if isinstance(text, dict) else folder.config
    _refuse_quantised(folder.config, text)
    if not folder.is_indexed:
        folder.weights = [_whole(folder)]
    folder.tensors = read_tensors(folder.weights)
    folder.context_tokens = first_whole(text, CONTEXT)
    folder.vocabulary_size = first_whole(text, ("vocab_size",))
    folder.hidden_size = first_whole(text, HIDDEN)
    _check_layers(folder, text)
    _check_ids(folder)
    return folder


def _refuse_quantised(*configs):
    """`transformers` would hand such weights to the library that made them, behind a row that says something else."""
    for config in configs:
        if (said := config.get("quantization_config")) is not None:
            method = said.get("quant_method") if isinstance(said, dict) else said
            what = f"`config.json` says that the weights are already quantised (`{str(method)[:80]}`): this engine loads plain ones"
            raise Failed("unsupported", what, "give the folder that it was made from, with `--set quantize=int4`")


def _check_layers(folder, text):
    """A network of fewer layers than the file has is another model, and `transformers` passes over the rest in silence."""
    layers = first_whole(text, LAYERS)
    # Encoders with a decoder beside them count both apart.
    if layers is None or "decoder_layers" in text:
        return
    said = next(name for name in LAYERS if text.get(name) is not None)
    # Layers that guess further tokens stand behind the others, and plain decoding leaves them out.
    guessing = text.get("num_nextn_predict_layers")
    most = layers + (guessing if type(guessing) is int else 0)
    for number in sorted({int(found[1]) for name in folder.tensors if (found := LAYER.match(name))}):
        if number >= most:
            raise Failed("model", f"model `{folder.name}` has tensors of layer {number}, and `{said}` is {layers}")


def _check_ids(folder):
    """An end that no token can be would never come, and a beginning that none is has no embedding."""
    size = folder.vocabulary_size
    for word, ids in (("bos_token_id", [folder.bos_id]), ("eos_token_id", folder.eos_ids)):
        for id in ids:
            if None not in (size, id) and id >= size:
                raise Failed("model", f"model `{folder.name}`: `{word}` {id} is outside its vocabulary of {size}")


def _whole(folder):
    """`transformers` opens a file of this name, or an index, and nothing else."""
    if folder.path / WHOLE not in folder.weights:
        found = folder.weights[0].name
        raise Failed("model", f"`{folder.path}` has `{found}`, and neither `{WHOLE}` nor `{INDEX}`")
    return folder.path / WHOLE
