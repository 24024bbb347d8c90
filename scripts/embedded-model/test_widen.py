"""Tests that the tensors of the wide copy map repeated inputs to repeated outputs."""

import random
import struct
import unittest

from widen import HIDDEN_COPIES, INTERMEDIATE_COPIES, divided, wide_tensor


def bf16(values: list[float]) -> bytes:
    return b"".join(struct.pack("<f", value)[2:] for value in values)


def floats(numbers: bytes) -> list[float]:
    return [struct.unpack("<f", b"\0\0" + numbers[at : at + 2])[0] for at in range(0, len(numbers), 2)]


def product(numbers: bytes, vector: list[float]) -> list[float]:
    values, columns = floats(numbers), len(vector)
    rows = (values[at : at + columns] for at in range(0, len(values), columns))
    return [sum(weight * number for weight, number in zip(row, vector, strict=True)) for row in rows]


class Widen(unittest.TestCase):
    def setUp(self):
        self.draw = random.Random(1)

    def vector(self, length: int) -> list[float]:
        # Multiples of 1/64 have exact products and sums.
        return [self.draw.randrange(-64, 65) / 64 for _ in range(length)]

    def test_a_matrix_maps_a_repeated_input_to_the_repeated_output(self):
        cases = {
            "q_proj": (HIDDEN_COPIES, HIDDEN_COPIES, True),
            "v_proj": (HIDDEN_COPIES, HIDDEN_COPIES, True),
            "o_proj": (HIDDEN_COPIES, HIDDEN_COPIES, False),
            "gate_proj": (HIDDEN_COPIES, INTERMEDIATE_COPIES, True),
            "down_proj": (INTERMEDIATE_COPIES, HIDDEN_COPIES, False),
        }
        for kind, (input_copies, output_copies, is_after_norm) in cases.items():
            numbers, inputs = bf16(self.vector(3 * 5)), self.vector(5)
            shape, wide = wide_tensor(f"model.layers.0.x.{kind}.weight", [3, 5], numbers)
            self.assertEqual(shape, [3 * output_copies, 5 * input_copies])
            # A norm of the copy divides its output by the number of copies.
            factor = 1 / input_copies if is_after_norm else 1
            outputs = product(wide, [value * factor for value in inputs] * input_copies)
            self.assertEqual(outputs, product(numbers, inputs) * output_copies, kind)

    def test_the_weights_of_a_norm_are_divided_exactly(self):
        weights = [0.0, 1.5, -0.3125, 3.0]
        shape, wide = wide_tensor("model.norm.weight", [4], bf16(weights))
        self.assertEqual(shape, [4 * HIDDEN_COPIES])
        self.assertEqual(floats(wide), [weight / HIDDEN_COPIES for weight in weights] * HIDDEN_COPIES)
        with self.assertRaises(ValueError):
            divided(bf16([2.0**-126]), HIDDEN_COPIES)


if __name__ == "__main__":
    unittest.main()
