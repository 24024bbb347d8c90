"""Tests the check of a model folder before another project's library reads it."""

import unittest

import checkpoint
from engine_tests import LLAMA, RefusalTests, changed_folder, tensors_of, write_model

GPT2 = {
    "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": 64, "n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 16,
}
MISTRAL = {**LLAMA, "model_type": "mistral", "architectures": ["MistralForCausalLM"], "max_position_embeddings": 8192}
NAME = "model.layers.0.mlp.up_proj.weight"


def open_model(config, tensors=None):
    return checkpoint.open_checkpoint(write_model(config, tensors or tensors_of(config)), list(checkpoint.CLASSES))


class Folders(RefusalTests):
    def test_a_folder_has_the_facts_of_its_config_and_tensors(self):
        facts = checkpoint.facts(open_model({**LLAMA, "eos_token_id": [3, 5], "tie_word_embeddings": True}))
        expected = {
            "architecture": "llama", "context_tokens": 128, "vocabulary_size": 64, "hidden_size": 32, "intermediate_size": 48, "layers": 1,
            "heads": 2, "kv_heads": 1, "head_dim": 16, "eos_ids": [3, 5],
        }
        self.assertEqual(facts, {**expected, "parameters": 64 * 32 + 3 * 32 + 32 * (32 + 16 + 16 + 32) + 3 * 32 * 48})

    def test_a_missing_tensor_another_shape_and_a_layer_too_many_are_refused(self):
        for config, name in ((LLAMA, NAME), (GPT2, "transformer.h.0.mlp.c_fc.bias")):
            tensors = tensors_of(config)
            del tensors[name]
            self.assert_refused("model", f"no tensor `{name}`", lambda: open_model(config, tensors))
        tensors = {**tensors_of(LLAMA), NAME: (48, 16)}
        self.assert_refused("model", "expected the shape [48, 32], found [48, 16]", lambda: open_model(LLAMA, tensors))
        tensors = {**tensors_of(LLAMA), "model.layers.1.mlp.up_proj.weight": (48, 32)}
        self.assert_refused("model", "tensors of layer 1, and the config has 1 layers", lambda: open_model(LLAMA, tensors))

    def test_a_folder_for_another_class_or_with_quantized_weights_is_refused(self):
        for fields, kind, part in (
            ({"model_type": "bert"}, "unsupported", "architecture `bert`: expected one of"),
            ({"architectures": ["MistralForCausalLM"]}, "unsupported", "expected one of `LlamaForCausalLM`"),
            ({"architectures": None}, "model", "`architectures` is missing"),
            ({"quantization_config": {"quant_method": "gptq"}}, "unsupported", "already quantized (`gptq`)"),
            ({"tie_word_embeddings": "yes"}, "model", "`tie_word_embeddings`: expected true or false"),
        ):
            folder = changed_folder(write_model(LLAMA, tensors_of(LLAMA)), **fields)
            self.assert_refused(kind, part, lambda: checkpoint.open_checkpoint(folder, list(checkpoint.CLASSES)))

    def test_the_window_of_mistral_is_the_longest_context_and_4096_without_the_field(self):
        for fields, context in (({}, 4096), ({"sliding_window": None}, 8192), ({"sliding_window": 100}, 100), ({"sliding_window": 9000}, 8192)):
            folder = open_model({**MISTRAL, **fields})
            checkpoint.limit_context_to_window(folder)
            self.assertEqual(folder.context_tokens, context, fields)


class Networks(RefusalTests):
    def test_fields_that_change_the_network_are_refused_with_their_name(self):
        for fields, kind, part in (
            ({"partial_rotary_factor": 0.5}, "unsupported", "`partial_rotary_factor`"),
            ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "unsupported", "`partial_rotary_factor`"),
            ({"rope_scaling": [4.0]}, "model", "`rope_scaling`: expected an object"),
            ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "unsupported", "only one rotation"),
            ({"use_sliding_window": True}, "unsupported", "`use_sliding_window`"),
            ({"hidden_act": "relu"}, "unsupported", "`hidden_act`"),
            ({"layer_types": ["full_attention", "sliding_attention"]}, "unsupported", "`layer_types`"),
            ({"layer_types": ["sliding_attention"]}, "unsupported", "`layer_types`"),
            ({"layer_types": [{}]}, "unsupported", "`layer_types`"),
        ):
            self.assert_refused(kind, part, lambda: checkpoint.refuse_other_networks({**LLAMA, **fields}, ["silu"]))
        for config in ({**LLAMA, "layer_types": ["full_attention"]}, {**MISTRAL, "layer_types": ["sliding_attention"]}):
            checkpoint.refuse_other_networks(config, ["silu"])

    def test_the_kind_of_rope_scaling_is_read_under_each_of_its_names(self):
        for fields, kind in (
            ({}, "default"), ({"rope_scaling": {"type": "linear"}}, "linear"), ({"rope_parameters": {"rope_type": "llama3"}}, "llama3"),
        ):
            self.assertEqual(checkpoint.rope_kind({**LLAMA, **fields}), kind)


if __name__ == "__main__":
    unittest.main()
