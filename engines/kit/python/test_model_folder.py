"""Tests the reading of model folders, and the messages for broken folders."""

import json
import os
import struct
import sys
import tempfile
import unittest
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

from engine_kit_wire import Failed
from model_folder import INDEX, SINGLE_FILE, dimensions, first_integer, open_folder, read_tensors, read_tokenizer, refuse_second_output_matrix

CONFIG = {"model_type": "llama", "bos_token_id": 1, "eos_token_id": 2}


def temporary_folder(test):
    folder = tempfile.TemporaryDirectory()
    test.addCleanup(folder.cleanup)
    return Path(folder.name)


class ModelFolders(unittest.TestCase):
    def folder(self, config=CONFIG, files=(SINGLE_FILE,), **json_files):
        """Makes a model folder. `json_files` are additional JSON files, by their names without `.json`."""
        path = temporary_folder(self)
        for name, content in {"config": config, **json_files}.items():
            (path / f"{name}.json").write_text(json.dumps(content))
        for number, name in enumerate(files):
            (path / name).write_bytes(safetensors({f"tensor.{number}": ("BF16", [2, 3], 12)}))
        if len(files) > 1:
            (path / INDEX).write_text(json.dumps({"weight_map": {f"tensor.{index}": file for index, file in enumerate(files)}}))
        return path

    def failure(self, path):
        with self.assertRaises(Failed) as caught:
            read_tensors(open_folder(path).weights)
        return caught.exception.kind, caught.exception.message

    def test_a_folder_is_read_and_its_generation_config_overrules_the_config(self):
        path = self.folder(generation_config={"eos_token_id": [63, 5], "bos_token_id": None, "temperature": 0.6})
        folder = open_folder(str(path))
        self.assertEqual((folder.architecture, folder.bos_id, folder.eos_ids), ("llama", 1, [63, 5]))
        self.assertEqual((folder.weights, folder.is_indexed, folder.tokenizer), ([path / SINGLE_FILE], False, None))
        tensor = read_tensors(folder.weights)["tensor.0"]
        self.assertEqual((tensor.dtype, tensor.shape, tensor.bytes), ("BF16", (2, 3), 12))
        (path / "tokenizer.json").write_text("{}")
        self.assertEqual(open_folder(path).tokenizer, path / "tokenizer.json")

    def test_shards_are_read_as_one_model_and_a_missing_shard_is_named(self):
        path = self.folder(files=("a.safetensors", "b.safetensors"))
        folder = open_folder(path)
        self.assertTrue(folder.is_indexed)
        self.assertEqual(list(read_tensors(folder.weights)), ["tensor.0", "tensor.1"])
        (path / "b.safetensors").unlink()
        self.assertEqual(self.failure(path), ("model", f"`{path / INDEX}`: shard `b.safetensors` is missing"))

    def test_the_dimensions_of_a_config_are_facts_under_the_names_of_the_protocol(self):
        llama = {"num_hidden_layers": 4, "num_attention_heads": 6, "num_key_value_heads": 2, "intermediate_size": 512}
        expected = {"layers": 4, "heads": 6, "kv_heads": 2, "intermediate_size": 512}
        self.assertEqual(dimensions(llama), expected)
        self.assertEqual(dimensions({"n_layer": 3, "n_head": 2, "n_inner": None}), {"layers": 3, "heads": 2})
        # A count for each layer is no dimension of the model.
        self.assertEqual(dimensions({"num_key_value_heads": [2, 4], "head_dim": 0, "num_layers": True}), {})

    def test_an_invalid_index_is_refused(self):
        path = self.folder()
        for weight_map, words in [
            ({"a": "../x.safetensors"}, "is not a file name"),
            ({}, "`weight_map` is missing"),
            ([1], "`weight_map` is missing"),
        ]:
            (path / INDEX).write_text(json.dumps({"weight_map": weight_map}))
            self.assertIn(words, self.failure(path)[1])

    def test_a_truncated_file_is_named_with_its_size(self):
        file = self.folder() / SINGLE_FILE
        content = file.read_bytes()
        for size in range(8, len(content)):  # the first 8 bytes are the length of the header
            file.write_bytes(content[:size])
            kind, message = self.failure(file.parent)
            self.assertEqual(kind, "model")
            self.assertIn(f"`{file}` is not a complete safetensors file: ", message)
        problem = f"truncated: {len(content) - 1} bytes, and its header states {len(content)}"
        self.assertEqual(message, f"`{file}` is not a complete safetensors file: {problem}")

    def test_an_invalid_safetensors_file_is_named_with_the_reason(self):
        entry = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
        invalid = [{**entry, "data_offsets": [0]}, {**entry, "shape": None}, {"dtype": "F32"}, 7]
        for content, words in [
            (b"", "0 bytes"),
            (b"PK\x03\x04" + bytes(100), "its header would have"),
            (b"\xff" * 64, "its header would have"),
            (struct.pack("<Q", 4) + b"{]]}", "its header is not a list of tensors"),
            (struct.pack("<Q", 4) + b"[12]", "its header is not a list of tensors"),
            (struct.pack("<Q", 2) + b"{}" + bytes(8), "too long"),
            *((with_header({"a": entry}) + bytes(4), "its header is not a list of tensors") for entry in invalid),
        ]:
            path = self.folder()
            (path / SINGLE_FILE).write_bytes(content)
            kind, message = self.failure(path)
            self.assertEqual(kind, "model")
            self.assertIn("model.safetensors` is not a complete safetensors file: ", message)
            self.assertIn(words, message)

    def test_a_tensor_whose_size_differs_from_its_shape_is_named_with_both_sizes(self):
        sizes = "F32 of shape [1000000000, 1000000000] is 4000000000000000000 bytes, but it has 4"
        for dtype, shape, size, words in [
            ("F32", [10**9, 10**9], 4, sizes),
            ("F64", [2], 8, "F64 of shape [2] is 16 bytes, but it has 8"),
            ("BF16", [], 4, "BF16 of shape [] is 2 bytes, but it has 4"),
            ("F8_E5M2", [3, 0], 1, "F8_E5M2 of shape [3, 0] is 0 bytes, but it has 1"),
        ]:
            path = self.folder()
            (path / SINGLE_FILE).write_bytes(safetensors({"a": (dtype, shape, size)}))
            self.assertEqual(self.failure(path), ("model", f"`{path / SINGLE_FILE}` is not a complete safetensors file: tensor `a`: {words}"))
        for dtype, shape, size in [("F4", [3], 2), ("F32", [0, 5], 0), ("BOOL", [3], 3), ("U64", [], 8)]:
            (path / SINGLE_FILE).write_bytes(safetensors({"a": (dtype, shape, size)}))
            self.assertEqual(read_tensors([path / SINGLE_FILE])["a"].bytes, size)

    def test_tensors_that_overlap_or_lie_outside_the_file_are_refused(self):
        path, entry = self.folder(), {"dtype": "F32", "shape": [1]}
        for spans, words in [
            ({"a": [2, 6], "b": [0, 4]}, "tensor `a` begins at byte 2, before tensor `b` ends at byte 4"),
            ({"a": [-4, 0], "b": [0, 6]}, "its header is not a list of tensors"),
            ({"a": [6, 2], "b": [2, 6]}, "its header is not a list of tensors"),
            ({"a": [0, 4], "b": [4, 80]}, "truncated: "),
        ]:
            tensors = {name: {**entry, "data_offsets": span} for name, span in spans.items()}
            (path / SINGLE_FILE).write_bytes(with_header(tensors) + bytes(6))
            self.assertIn(words, self.failure(path)[1])

    def test_an_output_matrix_other_than_the_tied_embedding_is_refused(self):
        path, names = self.folder(), ("model.embed_tokens.weight", "lm_head.weight")
        file = path / SINGLE_FILE
        for shape, size in ([4, 8], 64), ([512, 2048], 2 << 20):
            complete = safetensors({name: ("BF16", shape, size) for name in ("a", *names)} | {"a": ("BF16", [3], 6)})
            file.write_bytes(complete)
            refuse_second_output_matrix(open_folder(path))
            # The last byte of the file belongs to the output matrix.
            file.write_bytes(complete[:-1] + b"\x01")
            with self.assertRaises(Failed) as caught:
                refuse_second_output_matrix(open_folder(path))
            message = "`tie_word_embeddings` is true, and `lm_head.weight` differs from `model.embed_tokens.weight`"
            self.assertEqual((caught.exception.kind, caught.exception.message), ("model", f"model `{path.name}`: {message}"))
        file.write_bytes(safetensors({"wte.weight": ("BF16", [2, 3], 12), "lm_head.weight": ("F32", [2, 3], 24)}))
        with self.assertRaises(Failed):
            refuse_second_output_matrix(open_folder(path))
        file.write_bytes(safetensors({"wte.weight": ("BF16", [2, 3], 12)}))
        refuse_second_output_matrix(open_folder(path))

    def test_a_path_that_is_neither_a_folder_nor_a_file_is_refused(self):
        pipe = temporary_folder(self) / "pipe"
        os.mkfifo(pipe)
        for path in (pipe, Path("/dev/zero")):
            self.assertEqual(self.failure(path), ("model", f"`{path}` is neither a folder nor a file"))

    def test_other_formats_are_refused_with_the_list_of_formats(self):
        path = self.folder()
        self.assertIn("expected a model folder", self.failure(path / SINGLE_FILE)[1])
        (path / SINGLE_FILE).rename(path / "model.gguf")
        self.assertEqual(self.failure(path), ("unsupported", "format `gguf`: expected one of `safetensors`"))
        self.assertEqual(self.failure(path / "model.gguf"), ("unsupported", "format `gguf`: expected one of `safetensors`"))
        (path / "model.gguf").unlink()
        self.assertIn("no `*.safetensors` file in", self.failure(path)[1])

    def test_a_broken_config_is_refused_with_the_problem(self):
        missing, truncated = self.folder(), self.folder()
        (missing / "config.json").unlink()
        (truncated / "config.json").write_text('{"model_type": "llama"')
        for path, words in [
            (missing, "config.json`: No such file"),
            (truncated, "config.json`: "),
            (self.folder([1]), "config.json`: expected an object"),
            (self.folder({"eos_token_id": "</s>"}), "expected token ids, found `</s>`"),
            (self.folder({"bos_token_id": -1}), "expected token ids, found `-1`"),
        ]:
            kind, message = self.failure(path)
            self.assertEqual(kind, "model", message)
            self.assertIn(words, message)

    def test_the_first_name_found_in_a_config_gives_the_integer(self):
        self.assertEqual(first_integer({"n_ctx": 8, "n_positions": 4}, ("n_positions", "n_ctx")), 4)
        self.assertIsNone(first_integer({"n_ctx": None}, ("n_ctx",)))
        for invalid in ("many", 0, 2**32, True, 1.5):
            with self.assertRaises(Failed) as caught:
                first_integer({"n_ctx": invalid}, ("n_ctx",))
            self.assertIn("`n_ctx`: expected a whole number of at least 1, found", caught.exception.message)


class FakeTokenizer:
    """Replaces the class `tokenizers.Tokenizer`. Truncation and padding are enabled at first."""

    def __init__(self, vocabulary):
        self.vocabulary, self.enabled = vocabulary, {"truncation", "padding"}

    @classmethod
    def from_file(cls, path):
        vocabulary = json.loads(Path(path).read_text())
        if not vocabulary:
            raise Exception("expected a vocabulary" + " and more" * 100)
        return cls(vocabulary)

    def get_vocab(self, with_added_tokens):
        return self.vocabulary if with_added_tokens else {}

    def no_truncation(self):
        self.enabled.remove("truncation")

    def no_padding(self):
        self.enabled.remove("padding")


class Tokenizers(unittest.TestCase):
    def setUp(self):
        self.file = temporary_folder(self) / "tokenizer.json"
        self.folder = SimpleNamespace(name="small", tokenizer=self.file)

    def read(self, vocabulary, rows=None, library=SimpleNamespace(Tokenizer=FakeTokenizer)):
        self.file.write_text(json.dumps(vocabulary))
        with mock.patch.dict(sys.modules, {"tokenizers": library}):
            return read_tokenizer(self.folder, rows)

    def failure(self, *arguments, **options):
        with self.assertRaises(Failed) as caught:
            self.read(*arguments, **options)
        self.assertEqual(caught.exception.kind, "model")
        return caught.exception

    def test_a_prompt_is_neither_truncated_nor_padded(self):
        self.assertEqual(self.read({"a": 0, "b": 63}).enabled, set())

    def test_a_folder_without_a_tokenizer_needs_no_library(self):
        self.folder.tokenizer = None
        self.assertIsNone(self.read({}, library=None))

    def test_a_python_without_the_library_fails_with_a_hint(self):
        failed = self.failure({"a": 0}, library=None)
        self.assertEqual(failed.message, "no tokenizer for model `small`: `tokenizers` is not installed")
        self.assertEqual(failed.hint, "send `prompt_ids`")

    def test_a_broken_tokenizer_is_named_with_the_start_of_the_librarys_error(self):
        message = self.failure({}).message
        self.assertTrue(message.startswith(f"`{self.file}`: expected a vocabulary and more"), message)
        self.assertEqual(len(message), len(f"`{self.file}`: ") + 300)

    def test_another_models_tokenizer_is_refused_if_the_rows_of_the_embedding_are_known(self):
        problem = "its ids reach 64, and the embedding of model `small` has 64 rows"
        self.assertEqual(self.failure({"a": 64}, 64).message, f"`{self.file}` is another model's tokenizer: {problem}")
        for rows in (65, None):
            self.assertEqual(self.read({"a": 64}, rows).vocabulary, {"a": 64})


def safetensors(tensors):
    """A complete safetensors file of zeros. `tensors` has the dtype, shape and size in bytes of each name."""
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, (dtype, shape, size) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    return with_header(header) + bytes(end)


def with_header(header):
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text
