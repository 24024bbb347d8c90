"""Tests this engine's checks of a model folder. The tests import a tensor library only to write files."""

import unittest

from support import CONFIG, random_weights, write_folder

from engine_kit import Failed
from folder import open_folder


class Folders(unittest.TestCase):
    def failure(self, path):
        with self.assertRaises(Failed) as caught:
            open_folder(path)
        return caught.exception.kind, caught.exception.message

    def test_an_open_folder_has_the_sizes_for_the_checks_of_requests(self):
        folder = open_folder(write_folder(self, generation_config={"eos_token_id": [63, 5], "temperature": 0.6}))
        self.assertEqual((folder.architecture, folder.context_tokens, folder.vocabulary_size), ("llama", 128, 64))
        self.assertEqual((folder.bos_id, folder.eos_ids, folder.hidden_size), (0, [63, 5], 32))
        self.assertEqual(folder.tensors["model.norm.weight"].shape, (32,))

    def test_a_truncated_file_is_refused(self):
        path = write_folder(self)
        file = path / "model.safetensors"
        file.write_bytes(file.read_bytes()[:-1000])
        kind, message = self.failure(path)
        self.assertEqual(kind, "model")
        self.assertIn("is not a complete safetensors file: truncated", message)

    def test_the_refusal_of_a_wrong_file_name_lists_the_supported_names(self):
        path = write_folder(self)
        (path / "model.safetensors").rename(path / "weights.safetensors")
        message = f"`{path}` has `weights.safetensors`, but neither `model.safetensors` nor `model.safetensors.index.json`"
        self.assertEqual(self.failure(path), ("model", message))

    def test_a_config_without_model_type_or_with_an_invalid_size_is_refused(self):
        for path, text in [
            (write_folder(self, {"model_type": None}), "`model_type` is missing"),
            (write_folder(self, {"max_position_embeddings": "many"}), "`max_position_embeddings`: expected a whole number"),
        ]:
            kind, message = self.failure(path)
            self.assertEqual(kind, "model", message)
            self.assertIn(text, message)

    def test_the_refusal_of_already_quantized_weights_names_their_method(self):
        for method in ("bitsandbytes", "gptq"):
            quantized = {"quantization_config": {"quant_method": method}}
            for changes in (quantized, {"text_config": {**CONFIG, **quantized}}):
                with self.assertRaises(Failed) as caught:
                    open_folder(write_folder(self, changes, random_weights(CONFIG)))
                message = f"`config.json`: the weights are already quantized (`{method}`), and this engine loads only unquantized weights"
                self.assertEqual((caught.exception.kind, caught.exception.message), ("unsupported", message))
                self.assertIn("--set quantize=int4", caught.exception.hint)

    def test_weights_with_more_layers_than_the_config_are_refused(self):
        four_layers = random_weights({**CONFIG, "num_hidden_layers": 4})
        gpt2_names = {name: "transformer." + name.removeprefix("model.").replace("layers.", "h.") for name in four_layers}
        gpt2_layers = {gpt2_names[name]: tensor for name, tensor in four_layers.items()}
        gpt2_config = {"model_type": "gpt2", "n_layer": 3, "num_hidden_layers": None}
        for changes, weights, field in [
            ({"num_hidden_layers": 3}, four_layers, "num_hidden_layers"),
            (gpt2_config, gpt2_layers, "n_layer"),
        ]:
            path = write_folder(self, changes, weights)
            message = f"model `{path.name}` has tensors of layer 3, and `{field}` is 3"
            self.assertEqual(self.failure(path), ("model", message))
        path = write_folder(self, {"num_hidden_layers": 0}, four_layers)
        message = "`config.json`: `num_hidden_layers`: expected a whole number of at least 1, found `0`"
        self.assertEqual(self.failure(path), ("model", message))

    def test_tensors_that_a_network_does_not_need_are_ignored(self):
        weights = random_weights(CONFIG)
        weights["model.layers.1.self_attn.rotary_emb.inv_freq"] = weights["model.norm.weight"].clone()
        weights["vision_tower.encoder.layers.7.weight"] = weights["model.norm.weight"].clone()
        open_folder(write_folder(self, {"tie_word_embeddings": True}, weights))
        # The third layer is for multi-token prediction, which this engine does not use.
        three_layers = random_weights({**CONFIG, "num_hidden_layers": 3})
        open_folder(write_folder(self, {"num_nextn_predict_layers": 1}, three_layers))

    def test_an_id_outside_the_vocabulary_is_refused(self):
        for changes, generation, problem in [
            ({"eos_token_id": 64}, {}, "`eos_token_id` 64"),
            ({"bos_token_id": 99}, {}, "`bos_token_id` 99"),
            ({}, {"eos_token_id": [63, 70]}, "`eos_token_id` 70"),
        ]:
            path = write_folder(self, changes, generation_config=generation)
            self.assertEqual(self.failure(path), ("model", f"model `{path.name}`: {problem} is outside its vocabulary of 64 tokens"))

    def test_sizes_are_read_from_the_text_config_of_a_multimodal_model(self):
        changes = {"model_type": "llava", "max_position_embeddings": None, "vocab_size": None, "text_config": CONFIG}
        folder = open_folder(write_folder(self, changes, random_weights(CONFIG)))
        self.assertEqual((folder.context_tokens, folder.vocabulary_size), (128, 64))


if __name__ == "__main__":
    unittest.main()
