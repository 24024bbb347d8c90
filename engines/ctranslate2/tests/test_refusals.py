"""Tests refusals before any conversion: folders and configs that the converter would read wrongly."""

import unittest

from support import EMBEDDED, changed_config, load_model, write_model

import checkpoint
from engine_kit import Failed

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48,
    "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 128,
}
GEMMA = {**LLAMA, "architectures": ["GemmaForCausalLM"], "model_type": "gemma", "head_dim": 16}


def model_of(config):
    return write_model(config, checkpoint.expected_tensors(config["model_type"], checkpoint.read_sizes(config["model_type"], config)))


class Refusals(unittest.TestCase):
    def assert_refused(self, folder, kind, part, **fields):
        with self.assertRaises(Failed) as raised:
            load_model(folder, **fields)
        self.assertEqual(raised.exception.kind, kind, raised.exception.message)
        self.assertIn(part, raised.exception.message)

    def test_phi3_is_refused_because_its_converter_fails(self):
        self.assert_refused(changed_config(EMBEDDED, model_type="phi3"), "unsupported", "architecture `phi3`: expected one of")

    def test_models_that_the_converter_reads_wrongly_are_refused(self):
        llama_3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
        for fields, part in [
            ({"rope_scaling": llama_3}, "rope scaling `llama3` of llama"),
            ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope scaling `yarn`"),
            ({"use_sliding_window": True}, "`use_sliding_window`"),
            ({"hidden_act": "gelu"}, "`hidden_act`"),
        ]:
            self.assert_refused(changed_config(EMBEDDED, **fields), "unsupported", part)
        self.assert_refused(model_of({**LLAMA, "head_dim": 32}), "unsupported", "`head_dim` 32 of llama")
        self.assert_refused(model_of({**GEMMA, "attention_bias": True}), "unsupported", "`attention_bias` of gemma")
        self.assert_refused(model_of({**GEMMA, "hidden_activation": "gelu"}), "unsupported", "`hidden_activation`")

    def test_a_context_beyond_the_sliding_window_is_refused(self):
        mistral = {**LLAMA, "architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 100}
        self.assert_refused(model_of(mistral), "context", "101 is more than the 100", context_tokens=101)

    def test_gpt2_needs_all_its_tensors(self):
        gpt2 = {
            "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": 64, "n_embd": 32, "n_layer": 1, "n_head": 2,
            "n_positions": 16,
        }
        tensors = checkpoint.expected_tensors("gpt2", checkpoint.read_sizes("gpt2", gpt2))
        del tensors["transformer.h.0.mlp.c_fc.bias"]
        self.assert_refused(write_model(gpt2, tensors), "model", "no tensor `transformer.h.0.mlp.c_fc.bias`")
        self.assert_refused(model_of({**gpt2, "scale_attn_by_inverse_layer_idx": True}), "unsupported", "`scale_attn_by_inverse")


if __name__ == "__main__":
    unittest.main()
