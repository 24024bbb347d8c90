"""Tests refusals before any conversion: folders, configs and options that the library would read wrongly."""

import unittest
from types import SimpleNamespace

from support import load_model

from checkout import EMBEDDED
from engine_tests import LLAMA, RefusalTests, changed_folder, tensors_of, write_model
from worker import read_options


class Refusals(RefusalTests):
    def assert_folder_refused(self, folder, kind, part, **fields):
        self.assert_refused(kind, part, lambda: load_model(folder, **fields))

    def test_a_model_of_another_architecture_is_refused_with_the_supported_ones(self):
        self.assert_folder_refused(changed_folder(EMBEDDED, model_type="gpt2"), "unsupported", "architecture `gpt2`: expected one of `gemma`")

    def test_fields_that_change_the_network_are_refused(self):
        yarn = {"rope_type": "yarn", "factor": 4.0}
        for fields, part in [
            ({"rope_scaling": yarn}, "rope scaling `yarn`"),
            ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope scaling `linear`"),
            ({"hidden_act": "relu"}, "`hidden_act`"),
        ]:
            self.assert_folder_refused(changed_folder(EMBEDDED, **fields), "unsupported", part)

    def test_a_matrix_with_as_many_rows_as_the_vocabulary_is_refused(self):
        config = {**LLAMA, "vocab_size": 48}
        self.assert_folder_refused(write_model(config, tensors_of(config)), "unsupported", "takes it for the output matrix")

    def test_heads_that_the_attention_cannot_compute_are_refused(self):
        config = {**LLAMA, "head_dim": 24}
        self.assert_folder_refused(write_model(config, tensors_of(config)), "unsupported", "heads of 24 dimensions")

    def test_a_context_beyond_the_models_or_beyond_its_window_is_refused(self):
        self.assert_folder_refused(EMBEDDED, "context", "is more than the 2048 of model", context_tokens=2049)
        config = {**LLAMA, "model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": 100}
        self.assert_folder_refused(write_model(config, tensors_of(config)), "context", "101 is more than the 100", context_tokens=101)

    def test_the_option_for_activations_is_refused_for_f32_weights(self):
        self.assert_refused("unsupported", "`activations`", lambda: read_options({"activations": "int8"}, "f32"))
        self.assertEqual(read_options({}, "int4"), SimpleNamespace(activations="int8"))


if __name__ == "__main__":
    unittest.main()
