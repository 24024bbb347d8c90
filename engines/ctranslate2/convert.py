"""Converts a model folder to CTranslate2's format by the library's own converter: convert.py MODEL QUANTIZATION OUT

This script is a process of its own, because the converter imports PyTorch and `transformers`, which the worker does not need.
"""

import os
import sys

# The folder has everything, so that the converter needs no network.
os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from ctranslate2.converters import TransformersConverter


class Numbers:
    """Takes the place of the tokenizer: the text of each token is its id. The library takes prompts as texts of tokens, and the
    vocabulary of a real tokenizer may lack ids, or give two ids the same text."""

    bos_token = eos_token = unk_token = pad_token = "0"

    def __init__(self, size):
        self._size = size

    def __len__(self):
        return self._size

    def get_vocab(self):
        return {str(id): id for id in range(self._size)}


class Converter(TransformersConverter):
    def load_model(self, *arguments, **fields):
        model = super().load_model(*arguments, **fields)
        for name, weights in model.named_parameters():
            if not torch.isfinite(weights).all():
                # The library has no logits to check during a generation.
                sys.exit(f"tensor `{name}` has numbers that are NaN or infinite")
        self._vocabulary_size = model.config.vocab_size
        return model

    def load_tokenizer(self, *_, **__):
        return Numbers(self._vocabulary_size)


def main(model, quantization, out):
    Converter(model).convert(out, quantization=quantization)


if __name__ == "__main__":
    main(*sys.argv[1:])
