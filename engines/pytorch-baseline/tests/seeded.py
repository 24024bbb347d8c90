"""Weights and token ids by integer arithmetic only: the same on every machine and with every library version."""

import numpy

MASK = 2**64 - 1


def seeded_weights(config, tensors):
    """Names and shapes to f32 arrays; `*` in a name stands for the layer number. Matrices are around zero; vectors
    are around a norm's neutral value, with enough spread to matter."""
    gpt2, gemma = config["model_type"] == "gpt2", config["model_type"] == "gemma"
    layers, centre = config["n_layer" if gpt2 else "num_hidden_layers"], 0 if gemma else 1
    weights = {}
    for pattern, shape in tensors.items():
        for name in [pattern.replace("*", str(layer)) for layer in range(layers)] if "*" in pattern else [pattern]:
            values = _between_minus_one_and_one(name, shape)
            weights[name] = values / 4 if len(shape) > 1 else centre + values / 2
    return weights


def seeded_ids(count, vocabulary):
    return [int(number % vocabulary) for number in _numbers(_seed("ids"), count)]


def _between_minus_one_and_one(name, shape):
    numbers = _numbers(_seed(name), int(numpy.prod(shape)))
    # 24 bits, which f32 holds exactly.
    values = (numbers >> numpy.uint64(40)).astype(numpy.float32) / numpy.float32(2**23) - numpy.float32(1)
    return values.reshape(shape)


def _numbers(seed, count):
    """SplitMix64; word n needs no earlier word."""
    steps = numpy.arange(1, count + 1, dtype=numpy.uint64)
    z = numpy.uint64(seed) + steps * numpy.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
    return z ^ (z >> numpy.uint64(31))


def _seed(text):
    """FNV-1a."""
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = ((value ^ byte) * 0x100000001B3) & MASK
    return value
