"""Weights and token ids from integer arithmetic: the same on every machine and with every library version."""

import numpy

MASK = 2**64 - 1


def seeded_weights(config, tensors):
    """Makes f32 arrays from names and shapes. `*` in a name stands for every layer number. The values in
    matrices are around 0. Those in vectors, also in biases, are around the neutral weight of a norm (0 in Gemma, else 1)."""
    gpt2, gemma = config["model_type"] == "gpt2", config["model_type"] == "gemma"
    layers, centre = config["n_layer" if gpt2 else "num_hidden_layers"], 0 if gemma else 1
    weights = {}
    for pattern, shape in tensors.items():
        for name in [pattern.replace("*", str(layer)) for layer in range(layers)] if "*" in pattern else [pattern]:
            values = _uniform_values(name, shape)
            weights[name] = values / 4 if len(shape) > 1 else centre + values / 2
    return weights


def seeded_ids(count, vocabulary_size):
    return [int(number % vocabulary_size) for number in _random_integers(_seed("ids"), count)]


def _uniform_values(name, shape):
    """Values between -1 and 1."""
    integers = _random_integers(_seed(name), int(numpy.prod(shape)))
    # The upper 24 bits, which f32 holds exactly.
    values = (integers >> numpy.uint64(40)).astype(numpy.float32) / numpy.float32(2**23) - numpy.float32(1)
    return values.reshape(shape)


def _random_integers(seed, count):
    """The first 64-bit integers of the generator SplitMix64."""
    states = numpy.uint64(seed) + numpy.arange(1, count + 1, dtype=numpy.uint64) * numpy.uint64(0x9E3779B97F4A7C15)
    z = (states ^ (states >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
    return z ^ (z >> numpy.uint64(31))


def _seed(text):
    """The FNV-1a hash of a text."""
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = ((value ^ byte) * 0x100000001B3) & MASK
    return value
