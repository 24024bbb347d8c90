"""What this engine asks of a folder beside what every Python engine does. Nothing here imports a tensor library but to write
files."""

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
        self.assertEqual(folder.tensors["model.norm.weight"].shape, (32,))

    def test_a_truncated_file_is_refused_before_anything_is_imported(self):
        path = write_folder(self)
        file = path / "model.safetensors"
        file.write_bytes(file.read_bytes()[:-1000])
        kind, message = self.refusal(path)
        self.assertEqual(kind, "model")
        self.assertIn("no whole safetensors file: truncated", message)

    def test_a_file_under_a_name_that_the_library_does_not_open_is_refused_with_the_names_that_it_does(self):
        path = write_folder(self)
        (path / "model.safetensors").rename(path / "weights.safetensors")
        said = f"`{path}` has `weights.safetensors`, and neither `model.safetensors` nor `model.safetensors.index.json`"
        self.assertEqual(self.refusal(path), ("model", said))

    def test_a_config_that_does_not_say_what_the_model_is_is_refused(self):
        for path, words in [
            (write_folder(self, {"model_type": None}), "`model_type` is missing"),
            (write_folder(self, {"max_position_embeddings": "many"}), "`max_position_embeddings`: expected a whole number"),
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
