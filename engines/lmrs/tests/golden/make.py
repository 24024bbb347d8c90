"""Runs small models with random weights in PyTorch. The results are the expected values of `tests/network.rs`.

    scripts/python-of transformers engines/lmrs/tests/golden/make.py PROGRAM

PROGRAM is a built `orchestrate`: its `model synth` makes the same bytes on every machine. Weights are bf16, and computation is
f32. For each config, the script writes a file next to itself. The file has the ids of a text, the log-probability of each id
but the first, and the ids that follow greedily. It also has the root mean square difference between these log-probabilities
and those of a computation in bf16.
"""

import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

import torch
from transformers import AutoModelForCausalLM

FOLDER = pathlib.Path(__file__).parent
TEXT_IDS, NEW_IDS = 90, 12


def main() -> None:
    torch.set_num_threads(1)
    for config in sorted((FOLDER / "configs").glob("*.json")):
        with tempfile.TemporaryDirectory() as folder:
            model = pathlib.Path(folder) / "model"
            command = [sys.argv[1], "model", "synth", "--config", config, "--out", model, "--dtype", "bf16", "--seed", "7"]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            golden = golden_values(model)
        (FOLDER / f"{config.stem}.json").write_text(json.dumps(golden, separators=(",", ":")) + "\n")
        print(config.stem, golden["greedy"])


def golden_values(folder: pathlib.Path) -> dict:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    vocabulary = model.config.vocab_size
    ids = [(7919 * index * index + 104729 * index + 13) % vocabulary for index in range(TEXT_IDS)]
    with torch.no_grad():
        logprobs_f32 = logprobs(model, ids)
        text = list(ids)
        for _ in range(NEW_IDS):
            text.append(int(model(torch.tensor([text]), use_cache=False).logits[0, -1].argmax()))
        logprobs_bf16 = logprobs(model.to(torch.bfloat16), ids)
    rms = statistics.fmean((left - right) ** 2 for left, right in zip(logprobs_f32, logprobs_bf16)) ** 0.5
    logprobs_f32 = [round(value, 6) for value in logprobs_f32]
    return {"ids": ids, "logprobs": logprobs_f32, "bf16_rms": round(rms, 6), "greedy": text[TEXT_IDS:]}


def logprobs(model, ids: list) -> list:
    all_logprobs = torch.log_softmax(model(torch.tensor([ids]), use_cache=False).logits[0].double(), -1)
    return [all_logprobs[index, ids[index + 1]].item() for index in range(TEXT_IDS - 1)]


main()
