"""Tests loads: the configuration in effect, and the models and settings that are refused."""

import os
import unittest

from support import load_model

import id_folder
from checkout import EMBEDDED
from engine_tests import LLAMA, RefusalTests, changed_folder, generate, tensors_of, with_nan, write_model

IDS = [0, 17, 42, 9]


class Loading(RefusalTests):
    def test_the_facts_are_those_that_mistral_rs_states(self):
        facts = load_model().facts()
        expected = {"weights_dtype": "f32", "compute_dtype": "f32", "kv_dtype": "f32", "threads": 2, "context_tokens": 2048}
        self.assertEqual({name: facts[name] for name in expected}, expected)

    def test_weights_are_rounded_during_the_load(self):
        for dtype, compute in [("q8_0", "q8_0"), ("q4_k", "q8_k")]:
            model = load_model(dtype=dtype)
            facts = model.facts()
            self.assertEqual((facts["weights_dtype"], facts["compute_dtype"]), (dtype, compute))
            self.assertEqual(len(generate(model, [IDS], 4, ignore_eos=True)[0]), 4)

    def test_a_later_load_with_another_number_of_threads_is_refused(self):
        load_model()
        for fields in ({"threads": 1}, {"options": {"kv": "f16"}}):
            self.assert_refused("unsupported", "once in a process", lambda: load_model(**fields))

    def test_a_load_leaves_no_file(self):
        load_model()
        self.assertEqual([name for name in os.listdir(".") if name.startswith("ids-")], [])

    def test_weights_that_are_not_numbers_fail_a_request_and_give_no_token(self):
        model = load_model(with_nan(EMBEDDED))
        self.assert_refused("model", "logits that are not numbers", lambda: generate(model, [IDS], 4, ignore_eos=True))

    def test_models_that_mistral_rs_would_read_wrongly_are_refused(self):
        changes = {
            "rope scaling `yarn`": dict(rope_scaling={"rope_type": "yarn", "factor": 4.0}),
            "rope scaling `linear`": dict(rope_scaling={"type": "linear", "factor": 4.0}),
            "`hidden_act`": dict(hidden_act="gelu"),
            "architecture `gpt2`": dict(model_type="gpt2"),
            "`use_sliding_window`": dict(use_sliding_window=True),
            "already quantized": dict(quantization_config={"quant_method": "gptq"}),
        }
        for message, change in changes.items():
            self.assert_refused("unsupported", message, lambda: load_model(changed_folder(EMBEDDED, **change)))
        self.assert_refused("model", "`vocab_size` is missing", lambda: load_model(changed_folder(EMBEDDED, vocab_size=None)))
        layers = changed_folder(EMBEDDED, num_hidden_layers=1)
        self.assert_refused("model", "has tensors of layer 1", lambda: load_model(layers))

    def test_biases_that_mistral_rs_ignores_are_refused(self):
        config = {**LLAMA, "attention_bias": True}
        folder = write_model(config, tensors_of(config))
        self.assert_refused("unsupported", "mistral.rs reads no biases of `llama`", lambda: load_model(folder))

    def test_a_truncated_file_is_refused(self):
        folder = changed_folder(EMBEDDED, lambda content, tensors: content[:-100])
        self.assert_refused("model", "is not a complete safetensors file", lambda: load_model(folder))

    def test_a_longer_context_than_the_models_is_refused(self):
        self.assert_refused("context", "4096 is more than the 2048", lambda: load_model(context_tokens=4096))
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
