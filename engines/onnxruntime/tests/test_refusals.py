"""Tests refusals before any conversion: folders, configs and options that the library would read wrongly."""

import unittest
from types import SimpleNamespace

from support import load_model

import checkpoint
from checkout import EMBEDDED
from engine_tests import LLAMA, RefusalTests, changed_folder, tensors_of, write_model
from worker import ARCHITECTURES, read_options


class Refusals(RefusalTests):
    def assert_folder_refused(self, folder, kind, part, **fields):
        self.assert_refused(kind, part, lambda: load_model(folder, **fields))

    def test_a_model_of_another_architecture_is_refused_with_the_supported_ones(self):
        self.assert_folder_refused(changed_folder(EMBEDDED, model_type="gpt2"), "unsupported", "architecture `gpt2`: expected one of `gemma`")

    def test_a_class_that_is_not_the_architectures_own_is_refused(self):
        folder = changed_folder(EMBEDDED, architectures=["MistralForCausalLM"])
        self.assert_folder_refused(folder, "unsupported", "expected one of `LlamaForCausalLM`")
        self.assert_folder_refused(changed_folder(EMBEDDED, architectures=None), "model", "`architectures` is missing")

    def test_quantized_weights_are_refused(self):
        self.assert_folder_refused(changed_folder(EMBEDDED, quantization_config={"quant_method": "gptq"}), "unsupported", "already quantized")

    def test_fields_that_change_the_network_are_refused(self):
        yarn = {"rope_type": "yarn", "factor": 4.0}
        for fields, part in [
            ({"rope_scaling": yarn}, "rope scaling `yarn`"),
            ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope scaling `linear`"),
            ({"partial_rotary_factor": 0.5}, "`partial_rotary_factor`"),
            ({"use_sliding_window": True}, "`use_sliding_window`"),
            ({"hidden_act": "relu"}, "`hidden_act`"),
            ({"layer_types": ["full_attention", "sliding_attention"]}, "`layer_types`"),
        ]:
            self.assert_folder_refused(changed_folder(EMBEDDED, **fields), "unsupported", part)

    def test_a_missing_tensor_another_shape_and_a_layer_too_many_are_refused(self):
        tensors = tensors_of(LLAMA)
        name = "model.layers.0.mlp.up_proj.weight"
        without = {other: shape for other, shape in tensors.items() if other != name}
        self.assert_folder_refused(write_model(LLAMA, without), "model", f"no tensor `{name}`")
        self.assert_folder_refused(write_model(LLAMA, {**tensors, name: (48, 16)}), "model", "expected the shape [48, 32], found [48, 16]")
        added = {**tensors, "model.layers.1.mlp.up_proj.weight": (48, 32)}
        self.assert_folder_refused(write_model(LLAMA, added), "model", "tensors of layer 1, and the config has 1 layers")

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

    def test_every_claimed_architecture_has_a_class_and_tensors(self):
        self.assertLessEqual(set(ARCHITECTURES), set(checkpoint.CLASSES))


if __name__ == "__main__":
    unittest.main()
