"""Plain `transformers`, timed with `time.perf_counter`, without any code of this project.

    bare-transformers.py MODEL_FOLDER DTYPE THREADS loop|generate

`loop` calls the model for each token; `generate` calls transformers' `generate`. Reads lines of JSON, [prompt ids, number of
new tokens], and answers each with [new ids, seconds from reading the line to each id].
"""

import json
import sys
import time

folder, dtype, threads, method = sys.argv[1:5]

import torch
from transformers import AutoModelForCausalLM

torch.set_num_threads(int(threads))
dtype = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}[dtype]
model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True).eval()


@torch.no_grad()
def run_loop(prompt, new_tokens, record):
    out = model(input_ids=torch.tensor([prompt]), use_cache=True, logits_to_keep=1)
    for step in range(new_tokens):
        id = out.logits[:, -1].argmax(-1)
        record(id.item())
        if step + 1 < new_tokens:
            out = model(input_ids=id[:, None], past_key_values=out.past_key_values, use_cache=True, logits_to_keep=1)


class Streamer:
    def __init__(self, record):
        self.record, self.is_prompt = record, True

    def put(self, value):
        # The first value is the prompt.
        if not self.is_prompt:
            self.record(value.item())
        self.is_prompt = False

    def end(self):
        pass


def run_generate(prompt, new_tokens, record):
    ids = torch.tensor([prompt])
    settings = dict(do_sample=False, max_new_tokens=new_tokens, min_new_tokens=None, eos_token_id=None, pad_token_id=0)
    model.generate(ids, attention_mask=torch.ones_like(ids), streamer=Streamer(record), **settings)


if method == "generate":
    # Without an EOS id no text ends early, so every request is the same work.
    model.generation_config.eos_token_id = None
print("ready", flush=True)
for line in sys.stdin:
    start = time.perf_counter()
    prompt, new_tokens = json.loads(line)
    ids, seconds = [], []

    def record(id):
        seconds.append(time.perf_counter() - start)
        ids.append(id)

    (run_loop if method == "loop" else run_generate)(prompt, new_tokens, record)
    print(json.dumps([ids, seconds]), flush=True)
