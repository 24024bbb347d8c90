"""Tests loads: the configuration in effect, and the models and settings that are refused."""

import os
import unittest

from support import OPTIONS, Failed, change_weights, copy_of_embedded, generate, load_model

import id_folder

IDS = [0, 17, 42, 9]


class Loading(unittest.TestCase):
    def refusal(self, *arguments, **fields):
        with self.assertRaises(Failed) as caught:
            load_model(*arguments, **fields)
        return f"{caught.exception.kind}: {caught.exception.message}"

    def test_the_facts_are_those_that_mistral_rs_states(self):
        facts = load_model().facts()
        expected = {"weights_dtype": "f32", "compute_dtype": "f32", "kv_dtype": "f32", "threads": 2, "context_tokens": 2048}
        self.assertEqual({name: facts[name] for name in expected}, expected)

    def test_weights_are_rounded_during_the_load(self):
        for dtype, compute in [("q8_0", "q8_0"), ("q4_k", "q8_k")]:
            model = load_model(dtype=dtype, options=OPTIONS)
            facts = model.facts()
            self.assertEqual((facts["weights_dtype"], facts["compute_dtype"]), (dtype, compute))
            self.assertEqual(len(generate(model, [IDS], 4, ignore_eos=True)[0]), 4)

    def test_a_later_load_with_another_number_of_threads_is_refused(self):
        load_model()
        self.assertIn("once in a process", self.refusal(threads=1))
        self.assertIn("once in a process", self.refusal(options={"kv": "f16"}))

    def test_a_load_leaves_no_file(self):
        load_model()
        self.assertEqual([name for name in os.listdir(".") if name.startswith("ids-")], [])

    def test_weights_that_are_not_numbers_fail_a_request_and_give_no_token(self):
        folder = copy_of_embedded("nan")
        change_weights(folder, lambda weights: b"\xff\xff" * (len(weights) // 2))
        model = load_model(folder)
        with self.assertRaises(Failed) as caught:
            generate(model, [IDS], 4, ignore_eos=True)
        self.assertEqual(caught.exception.kind, "model")

    def test_models_that_mistral_rs_would_read_wrongly_are_refused(self):
        changes = {
            "rope scaling `yarn`": dict(rope_scaling={"rope_type": "yarn", "factor": 4.0}),
            "rope scaling `linear`": dict(rope_scaling={"type": "linear", "factor": 4.0}),
            "`attention_bias`": dict(attention_bias=True),
            "`hidden_act`": dict(hidden_act="gelu"),
            "architecture `gpt2`": dict(model_type="gpt2"),
            "vocabulary_size": dict(vocab_size=...),
        }
        for number, (message, change) in enumerate(changes.items()):
            self.assertIn(message, self.refusal(copy_of_embedded(f"refused-{number}", **change)))

    def test_a_truncated_file_is_refused(self):
        folder = copy_of_embedded("truncated")
        change_weights(folder, lambda weights: weights[:-100])
        self.assertIn("is not a complete safetensors file", self.refusal(folder))

    def test_a_longer_context_than_the_models_is_refused(self):
        self.assertTrue(self.refusal(context_tokens=4096).startswith("context: "))
        self.assertEqual(load_model(context_tokens=100).facts()["context_tokens"], 100)

    def test_fields_that_a_config_leaves_out_are_made_explicit(self):
        explicit = id_folder.explicit({"rope_parameters": {"rope_type": "default", "rope_theta": 5.0}}, {})
        self.assertEqual(explicit, {"tie_word_embeddings": True, "rope_theta": 5.0, "rope_scaling": None})
        scaled = {"rope_type": "llama3", "rope_theta": 5.0, "factor": 8.0}
        explicit = id_folder.explicit({"rope_parameters": scaled}, {id_folder.OUTPUT_MATRIX: None})
        self.assertEqual(explicit["rope_scaling"], {"rope_type": "llama3", "factor": 8.0})
        self.assertFalse(explicit["tie_word_embeddings"])
        qwen = id_folder.explicit({"model_type": "qwen3", "num_hidden_layers": 2}, {})
        self.assertEqual((qwen["use_sliding_window"], qwen["max_window_layers"]), (False, 2))


if __name__ == "__main__":
    unittest.main()
