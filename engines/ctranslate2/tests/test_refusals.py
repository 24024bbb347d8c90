"""Tests refusals before any conversion: folders and configs that the converter would read wrongly."""

import unittest

from support import load_model

from checkout import EMBEDDED
from engine_tests import LLAMA, RefusalTests, changed_folder, tensors_of, write_model

GEMMA = {**LLAMA, "architectures": ["GemmaForCausalLM"], "model_type": "gemma", "head_dim": 16}


def model_of(config):
    return write_model(config, tensors_of(config))


class Refusals(RefusalTests):
    def assert_folder_refused(self, folder, kind, part, **fields):
        self.assert_refused(kind, part, lambda: load_model(folder, **fields))

    def test_phi3_is_refused_because_its_converter_fails(self):
        self.assert_folder_refused(changed_folder(EMBEDDED, model_type="phi3"), "unsupported", "architecture `phi3`: expected one of")

    def test_models_that_the_converter_reads_wrongly_are_refused(self):
        llama_3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
        for fields, part in [
            ({"rope_scaling": llama_3}, "rope scaling `llama3` of llama"),
            ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope scaling `yarn`"),
            ({"use_sliding_window": True}, "`use_sliding_window`"),
            ({"hidden_act": "gelu"}, "`hidden_act`"),
        ]:
            self.assert_folder_refused(changed_folder(EMBEDDED, **fields), "unsupported", part)
        self.assert_folder_refused(model_of({**LLAMA, "head_dim": 32}), "unsupported", "`head_dim` 32 of llama")
        self.assert_folder_refused(model_of({**GEMMA, "attention_bias": True}), "unsupported", "`attention_bias` of gemma")
        self.assert_folder_refused(model_of({**GEMMA, "hidden_activation": "gelu"}), "unsupported", "`hidden_activation`")

    def test_a_context_beyond_the_sliding_window_is_refused(self):
        mistral = {**LLAMA, "architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 100}
        self.assert_folder_refused(model_of(mistral), "context", "101 is more than the 100", context_tokens=101)

    def test_a_gpt2_that_scales_by_the_number_of_the_layer_is_refused(self):
        gpt2 = {
            "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": 64, "n_embd": 32, "n_layer": 1, "n_head": 2,
            "n_positions": 16,
        }
        inverse = {**gpt2, "scale_attn_by_inverse_layer_idx": True}
        self.assert_folder_refused(model_of(inverse), "unsupported", "`scale_attn_by_inverse")


if __name__ == "__main__":
    unittest.main()
