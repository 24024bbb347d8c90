# /// script
# requires-python = ">=3.10"
# dependencies = ["gguf==0.19.0", "numpy==2.2.6"]
# ///
"""Makes the files in the folder of this script with the package that llama.cpp publishes: `uv run make_golden.py`.

widen/DTYPE.bin     1024 numbers in DTYPE, made of random bits with finite scales of all sizes and signs; then the f32
                    numbers that `gguf.quants.dequantize` reads from them
narrow/numbers.bin  8192 numbers as f32, in rows of different kinds
narrow/DTYPE.bin    these numbers as `gguf.quants.quantize` writes them
"""

from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import dequantize, quantize

HERE = Path(__file__).parent

# The byte offsets of the f16 numbers, the scales, in each quantization block.
SCALES = {
    Type.Q4_0: [0],
    Type.Q4_1: [0, 2],
    Type.Q5_0: [0],
    Type.Q5_1: [0, 2],
    Type.Q8_0: [0],
    Type.Q2_K: [80, 82],
    Type.Q3_K: [108],
    Type.Q4_K: [0, 2],
    Type.Q5_K: [0, 2],
    Type.Q6_K: [208],
    Type.F16: [0],
    Type.BF16: [],
}


def finite_f16s(generator: np.random.Generator, count: int) -> np.ndarray:
    sign, exponent = generator.integers(0, 2, count), generator.integers(0, 31, count)
    bits = sign << 15 | exponent << 10 | generator.integers(0, 1024, count)
    return bits.astype("<u2").view(np.uint8).reshape(count, 2)


def blocks(generator: np.random.Generator, dtype: Type, numbers: int) -> np.ndarray:
    block_numbers, block_bytes = GGML_QUANT_SIZES[dtype]
    count = numbers // block_numbers
    packed = generator.integers(0, 256, (count, block_bytes)).astype(np.uint8)
    for offset in SCALES[dtype]:
        packed[:, offset : offset + 2] = finite_f16s(generator, count)
    return packed.reshape(1, -1)


def rows(generator: np.random.Generator) -> np.ndarray:
    shape = (8, 256)
    normal = generator.normal(0, 0.02, shape)
    tails = generator.standard_t(2, shape)
    magnitudes = generator.normal(0, 1, shape) * np.exp(generator.normal(0, 4, (8, 8))).repeat(32, axis=1)
    # Each block of 32 numbers contains 127 and -127. So its step in Q8_0 is 1, and numbers such as 2.5 are ties.
    ties = generator.integers(-508, 509, shape) / 4
    ties[:, ::32], ties[:, 1::32] = 127, -127
    everything = np.concatenate([normal, tails, magnitudes, ties]).astype("<f4")
    # A block of zeros, a single large number, and blocks of equal numbers.
    everything[3, 32:64] = 0
    everything[4, 7] = 1000
    everything[5, 64:96] = 0.125
    everything[6, 96:128] = -0.125
    return everything


def main() -> None:
    generator = np.random.default_rng(20)
    (HERE / "widen").mkdir(exist_ok=True)
    (HERE / "narrow").mkdir(exist_ok=True)
    for dtype in SCALES:
        packed = blocks(generator, dtype, 1024)
        numbers = dequantize(packed, dtype).astype("<f4", copy=False)
        (HERE / "widen" / f"{dtype.name}.bin").write_bytes(packed.tobytes() + numbers.tobytes())
    numbers = rows(generator)
    (HERE / "narrow" / "numbers.bin").write_bytes(numbers.tobytes())
    for dtype in [Type.F16, Type.BF16, Type.Q8_0, Type.Q4_0]:
        (HERE / "narrow" / f"{dtype.name}.bin").write_bytes(quantize(numbers, dtype).tobytes())


if __name__ == "__main__":
    main()
