"""Tests the distribution of a network over devices. The tests need no GPU."""

import math
import unittest
from unittest import mock

from support import load, write_folder

import torch

from engine_kit import Failed
from folder import open_folder
from network import assign_devices, divide_parts, module_bytes, network_parts, place_parts, read_config


def device_sizes(parts, device_count):
    """The bytes that `divide_parts` puts on each device."""
    placed, sizes = divide_parts(parts, device_count), [0] * device_count
    for name, size in parts:
        sizes[placed[name]] += size
    return sizes


class Distribution(unittest.TestCase):
    def test_each_device_gets_adjacent_parts_and_no_device_is_empty(self):
        for sizes in ([5, 1, 1, 1, 1, 5], [1] * 10, [100, 1, 1], [1, 1, 100], [3, 3, 3, 3, 3], [0, 0, 0, 7]):
            parts = [(f"part {index}", size) for index, size in enumerate(sizes)]
            for devices in range(1, len(parts) + 1):
                placed = [divide_parts(parts, devices)[name] for name, _ in parts]
                self.assertEqual(placed, sorted(placed), (sizes, devices))
                self.assertEqual(sorted(set(placed)), list(range(devices)), (sizes, devices))

    def test_the_fullest_device_has_as_few_bytes_as_possible(self):
        parts = [("embedding", 8), *((f"layer {index}", 2) for index in range(8)), ("head", 8)]
        self.assertEqual(device_sizes(parts, 2), [16, 16])
        self.assertEqual(max(device_sizes(parts, 4)), 8)
        self.assertEqual(max(device_sizes(parts, 3)), 12)

    def test_more_devices_than_parts_are_refused(self):
        with self.assertRaises(Failed) as caught:
            divide_parts([("a", 1), ("b", 1)], 3)
        self.assertEqual(caught.exception.message, "`shard` 3: the network has 2 parts to distribute")

    def test_the_parts_of_a_network_are_whole_layers(self):
        network = load(write_folder(self)).network
        parts = network_parts(network)
        names = [name for name, _ in parts]
        self.assertEqual(names[:3], ["model.embed_tokens", "model.layers.0", "model.layers.1"])
        self.assertEqual(names[-1], "lm_head")
        self.assertEqual(sum(size for _, size in parts), module_bytes(network))

    def test_a_tied_head_is_on_the_device_of_the_embedding(self):
        with mock.patch("torch.cuda.device_count", return_value=2):
            for tied in (True, False):
                folder = open_folder(write_folder(self, {"tie_word_embeddings": tied}))
                placed, sizes = assign_devices(*read_config(folder), torch.bfloat16, torch.device("cuda", 0), 2)
                self.assertEqual(placed["lm_head"] == placed["model.embed_tokens"], tied)
                self.assertEqual(placed["model.layers.1"], torch.device("cuda", 1))
                weight_count = sum(math.prod(tensor.shape) for tensor in folder.tensors.values())
                self.assertEqual(sum(sizes.values()), 2 * weight_count)

    def test_a_tied_head_is_counted_once_on_its_device(self):
        from transformers import LlamaConfig, LlamaForCausalLM

        # Llama 3.2 1B: 1,235,814,400 parameters, 60,821,504 of them in each layer.
        shape = dict(vocab_size=128256, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, head_dim=64)
        config = LlamaConfig(**shape, num_attention_heads=32, num_key_value_heads=8, tie_word_embeddings=True)
        with torch.device("meta"):
            network = LlamaForCausalLM(config).to(torch.bfloat16)
        embedding_bytes, layer_bytes, norm_bytes = 2 * 128256 * 2048, 2 * 60_821_504, 2 * 2048
        # The number of devices, and of layers on each device.
        for count, layers in [(2, [6, 10]), (3, [2, 7, 7]), (4, [1, 5, 5, 5])]:
            placed, sizes = place_parts(network, count)
            expected = [layer_count * layer_bytes for layer_count in layers]
            expected[0] += embedding_bytes
            expected[-1] += norm_bytes
            self.assertEqual((sizes, placed["lm_head"], placed["model.embed_tokens"]), (expected, 0, 0))
            self.assertEqual(sum(sizes), 2 * 1_235_814_400)

    def test_missing_devices_are_refused(self):
        with mock.patch("torch.cuda.device_count", return_value=2), self.assertRaises(Failed) as caught:
            assign_devices(*read_config(open_folder(write_folder(self))), torch.bfloat16, torch.device("cuda", 1), 2)
        self.assertEqual(caught.exception.message, "`shard` 2 from `cuda:1` on: there are 2 CUDA devices")
        self.assertEqual(caught.exception.hint, "--set shard=1")


if __name__ == "__main__":
    unittest.main()
