"""Which folders are read and which are refused, in which words. Nothing here imports a tensor library but to write files."""

import json
import struct
import unittest

from support import CONFIG, random_weights, write_folder

from engine_kit import Failed
from folder import open_folder


class Folders(unittest.TestCase):
    def refusal(self, path):
        with self.assertRaises(Failed) as caught:
            open_folder(path)
        return caught.exception.kind, caught.exception.message

    def test_a_folder_says_what_requests_are_checked_against(self):
        folder = open_folder(write_folder(self, generation_config={"eos_token_id": [63, 5], "temperature": 0.6}))
        self.assertEqual((folder.architecture, folder.context_tokens, folder.vocabulary_size), ("llama", 128, 64))
        self.assertEqual((folder.bos_id, folder.eos_ids, folder.hidden_size), (0, [63, 5], 32))
        self.assertEqual(folder.tensors["model.norm.weight"], ("F32", (32,)))
        self.assertIsNone(folder.tokenizer)

    def test_shards_are_read_as_one_and_a_lost_one_is_named(self):
        path = write_folder(self, shards=2)
        self.assertEqual(len(open_folder(path).weights), 2)
        next(path.glob("*00002-of*")).unlink()
        kind, message = self.refusal(path)
        self.assertEqual(kind, "model")
        self.assertIn("shard `model-00002-of-00002.safetensors` is missing", message)

    def test_an_index_that_points_outside_the_folder_is_refused(self):
        path = write_folder(self, shards=2)
        (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../x.safetensors"}}))
        self.assertIn("is no file name", self.refusal(path)[1])

    def test_a_truncated_file_is_named_with_how_much_of_it_is_there(self):
        path = write_folder(self)
        file = path / "model.safetensors"
        whole = file.read_bytes()
        file.write_bytes(whole[:-1000])
        kind, message = self.refusal(path)
        self.assertEqual(kind, "model")
        said = f"`{file}` is no whole safetensors file: truncated: {len(whole) - 1000} bytes, and its header speaks of {len(whole)}"
        self.assertEqual(message, said)

    def test_what_is_no_safetensors_file_is_named_with_why(self):
        for content, words in [
            (b"", "0 bytes"),
            (b"PK\x03\x04" + bytes(100), "its header would have"),
            (struct.pack("<Q", 4) + b"{]]}", "its header is no list of tensors"),
            (struct.pack("<Q", 4) + b"[12]", "its header is no list of tensors"),
            (struct.pack("<Q", 2) + b"{}" + bytes(8), "longer than it says"),
        ]:
            path = write_folder(self)
            (path / "model.safetensors").write_bytes(content)
            kind, message = self.refusal(path)
            self.assertEqual(kind, "model")
            self.assertIn("model.safetensors` is no whole safetensors file: ", message)
            self.assertIn(words, message)

    def test_other_formats_are_refused_with_what_is_offered(self):
        path = write_folder(self)
        (path / "model.safetensors").rename(path / "model.gguf")
        self.assertEqual(self.refusal(path), ("unsupported", "format `gguf`: offered are `safetensors`"))
        self.assertEqual(self.refusal(path / "model.gguf"), ("unsupported", "format `gguf`: offered are `safetensors`"))
        (path / "model.gguf").unlink()
        self.assertIn("no `*.safetensors` file in", self.refusal(path)[1])

    def test_a_broken_config_is_refused_with_what_is_broken(self):
        without, half = write_folder(self), write_folder(self)
        (without / "config.json").unlink()
        (half / "config.json").write_text('{"model_type": "llama"')
        for path, words in [
            (without, "config.json`: No such file"),
            (half, "config.json`: "),
            (write_folder(self, {"model_type": None}), "`model_type` is missing"),
            (write_folder(self, {"max_position_embeddings": "many"}), "`max_position_embeddings`: expected a whole number"),
            (write_folder(self, {"eos_token_id": "</s>"}), "expected token ids, found `</s>`"),
        ]:
            kind, message = self.refusal(path)
            self.assertEqual(kind, "model", message)
            self.assertIn(words, message)

    def test_the_text_part_of_a_larger_models_config_is_what_counts(self):
        changes = {"model_type": "llava", "max_position_embeddings": None, "vocab_size": None, "text_config": CONFIG}
        folder = open_folder(write_folder(self, changes, random_weights(CONFIG)))
        self.assertEqual((folder.context_tokens, folder.vocabulary_size), (128, 64))


if __name__ == "__main__":
    unittest.main()
