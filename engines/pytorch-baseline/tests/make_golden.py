"""Makes `golden.json`: logits of tiny networks of every architecture, computed by Hugging Face `transformers`. Prints
the largest difference from this engine's logits, over all positions and the whole vocabulary.

    scripts/python-of pytorch-baseline engines/pytorch-baseline/tests/make_golden.py
"""

import json
import re
import sys
import tempfile
from pathlib import Path

from support import LLAMA3_ROPE_SCALING, load
from seeded import seeded_ids, seeded_weights

import torch
import transformers
from safetensors.torch import save_file

GOLDEN = Path(__file__).with_name("golden.json")
TOKENS = 200
# At these positions, the file has the logits of every 13th id.
POSITIONS = [0, 1, 99, 199]
VOCABULARY_STEP = 13
MAX_LOGIT_DIFFERENCE = 1e-4
# The name of a tensor of any layer but the first.
LATER_LAYER = re.compile(r"\.[1-9]\d*\.")

# The epsilons are large, so that a wrong epsilon changes the logits. The windows are much shorter than the sequence.
COMMON = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 72,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 0.01,
    "rope_theta": 5000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
GEMMA = {name: value for name, value in COMMON.items() if name != "tie_word_embeddings"}
GPT2 = {
    "model_type": "gpt2",
    "vocab_size": 96,
    "n_embd": 64,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 256,
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 0.01,
    "bos_token_id": 0,
    "eos_token_id": 1,
}

CASES = {
    "llama": {**COMMON, "model_type": "llama"},
    "llama with scaled positions": {
        **COMMON,
        "model_type": "llama",
        "rope_scaling": {**LLAMA3_ROPE_SCALING, "factor": 8.0, "original_max_position_embeddings": 64},
        "tie_word_embeddings": True,
    },
    "llama with biases": {**COMMON, "model_type": "llama", "attention_bias": True, "mlp_bias": True},
    "mistral": {**COMMON, "model_type": "mistral", "head_dim": 24, "sliding_window": None},
    "mistral with a window": {**COMMON, "model_type": "mistral", "sliding_window": 50},
    "qwen2": {**COMMON, "model_type": "qwen2", "use_sliding_window": False, "sliding_window": 50},
    "qwen3": {**COMMON, "model_type": "qwen3", "head_dim": 24, "tie_word_embeddings": True},
    "qwen3 with biases": {**COMMON, "model_type": "qwen3", "head_dim": 24, "attention_bias": True},
    "phi3": {**COMMON, "model_type": "phi3", "pad_token_id": 0, "sliding_window": None},
    "phi3 with a window": {**COMMON, "model_type": "phi3", "pad_token_id": 0, "sliding_window": 47},
    "gemma": {**GEMMA, "model_type": "gemma", "head_dim": 32, "num_key_value_heads": 1, "hidden_act": "gelu"},
    "gpt2": GPT2,
    "gpt2 with another inner size": {**GPT2, "n_inner": 100},
}


def main():
    transformers.utils.logging.disable_progress_bar()
    versions = {"transformers": transformers.__version__, "torch": torch.__version__.split("+")[0]}
    cases, largest_difference = {}, 0.0
    for name, config in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            cases[name], difference, largest_logit = make_case(config, Path(folder))
        largest_difference = max(largest_difference, difference)
        print(f"{name}: largest difference {difference:.1e}, largest logit {largest_logit:.1f}", file=sys.stderr)
    if largest_difference > MAX_LOGIT_DIFFERENCE:
        sys.exit("error: the engine and transformers disagree, so no file is written")
    header = {"made_by": "make_golden.py", "versions": versions, "tokens": TOKENS, "vocabulary_step": VOCABULARY_STEP}
    lines = ",\n".join(f"{json.dumps(name)}: {{\n{format_case(case)}\n}}" for name, case in cases.items())
    GOLDEN.write_text(f'{json.dumps(header)[:-1]}, "cases": {{\n{lines}\n}}}}\n')


def format_case(case):
    return ",\n".join(f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in case.items())


def make_case(config, folder):
    """Returns the case for the file, the largest difference from this engine's logits, and the largest logit."""
    ids = seeded_ids(TOKENS, config["vocab_size"])
    (folder / "config.json").write_text(json.dumps(config))
    with torch.device("meta"):
        empty = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(folder))
    shapes = {name: list(parameter.shape) for name, parameter in empty.named_parameters()}
    # All layers have the same tensors, so the file lists the tensors of the first layer.
    tensors = {name.replace(".0.", ".*."): shape for name, shape in shapes.items() if not LATER_LAYER.search(name)}
    weights = {name: torch.from_numpy(array) for name, array in seeded_weights(config, tensors).items()}
    assert {name: list(tensor.shape) for name, tensor in weights.items()} == shapes
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"], info
    with torch.no_grad():
        expected = model(torch.tensor([ids]), use_cache=False).logits[0]  # [tokens, vocabulary]
        # Loads the config in its published form, and in the form that this version of `transformers` writes.
        model.save_pretrained(folder / "saved")
        computed = [load(path)._logits(ids) for path in (folder, folder / "saved")]
    difference = max((expected - logits).abs().max().item() for logits in computed)
    rows = {position: expected[position, ::VOCABULARY_STEP].tolist() for position in POSITIONS}
    rows = {position: [round(value, 6) for value in row] for position, row in rows.items()}
    return {"config": config, "tensors": tensors, "logits": rows}, difference, expected.abs().max().item()


if __name__ == "__main__":
    main()
