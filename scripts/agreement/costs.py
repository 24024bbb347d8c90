"""Compares the differences of correct engines with the costs of their dtypes. The multiples of these costs, up to which an
output is accepted, come from these results.

It first prints the cost of each dtype on a model: the difference of the verifier in that dtype, or in f32 on weights rounded to
that format, from itself in f32. It then prints a row for each correct engine. The row has the root mean square of the differences
of log-probabilities, over the held-out text and over its worst stretch, and both divided by the cost of the reported dtypes.
The next columns count the generated tokens that differ from the verifier's, and have the largest gap. Within one output, equal
pairs of differing tokens count once, with their largest gap. The last column has the sum of these gaps, divided by the nats
that the costs explain."""

import argparse
import math
import sys
import tempfile
from pathlib import Path

import calibrate
from calibrate import EMBEDDED, STRETCH_TOKENS, Calibration, Engine, Failed, rms
from programs import Orchestrate
from tokenizers import Tokenizer

PROMPTS, PROMPT_TOKENS, NEW_TOKENS = 12, 32, 64
ROUNDED = ("q8_0", "q4_0")
MAX_GAPS = 24
# The engines: label, program, dtype of the GGUF file (None: the model's folder), fields of `load`.
ENGINES = [
    *[(f"lmrs {dtype}", "lmrs", None, {"dtype": dtype}) for dtype in ("f32", "bf16", "bf16z", "f16", "q8_0", "q4_0")],
    *[(f"lmrs {dtype}, {kernels}", "lmrs", None, {"dtype": dtype, "options": {"kernels": kernels}})
      for kernels in ("portable", "avx512") for dtype in ("bf16", "f16", "q8_0", "q4_0")],
    *[(f"candle {dtype}", "candle-engine", None, {"dtype": dtype}) for dtype in ("f32", "bf16", "f16")],
    *[(f"candle {dtype} file", "candle-engine", dtype, {}) for dtype in ROUNDED],
    ("llama-cpp f32, kv f32, plain", "llama-cpp-engine", "f32", {"options": {"kv": "f32", "attention": "plain"}}),
    *[(f"llama-cpp {dtype}", "llama-cpp-engine", dtype, {}) for dtype in ("f32", "bf16", "f16", *ROUNDED)],
    ("llama-cpp q4_0 as stored", "llama-cpp-engine", "q4_0", {"options": {"repack": False}}),
    ("llama-cpp bf16, plain", "llama-cpp-engine", "bf16", {"options": {"attention": "plain"}}),
    *[(f"transformers {dtype}", "transformers-engine", None, {"dtype": dtype}) for dtype in ("f32", "bf16", "f16")],
    *[(f"pytorch-baseline {dtype}", "pytorch-baseline", None, {"dtype": dtype}) for dtype in ("bf16", "f16")],
]


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--programs", type=Path, required=True, help="the folder of the built programs")
    arguments.add_argument("models", nargs="*", help="as for `calibrate`; default `embedded` and `tiny-llama`")
    arguments = arguments.parse_args()
    arguments.json = None
    with tempfile.TemporaryDirectory(prefix="costs-") as folder:
        costs = Costs(arguments, Path(folder))
        for name in arguments.models or ["embedded", "tiny-llama"]:
            costs.compare(name)
        costs.calibration.end()
    return 0


class Costs:
    def __init__(self, arguments, folder: Path):
        self.programs, self.folder = arguments.programs, folder
        self.calibration = Calibration(arguments, folder)
        self.orchestrate = Orchestrate(arguments.programs / "orchestrate")
        self.f32, self.other = self.calibration.verifier, self.calibration.second_verifier

    def compare(self, name: str) -> None:
        model = self.calibration.make_model(name)
        self.sequences = calibrate.held_out_windows(model)
        self.prompts = prompts(model)
        self.f32.load(model)
        self.expected, self.likeliest = self.answers(self.f32)
        print(f"\n{name}\n{'cost of':<12}{'rms':>9}{'stretch':>9}{'changed':>9}{'mean gap':>10}{'max gap':>9}", flush=True)
        self.costs, files = {}, {}
        for dtype in ("bf16", "f16", *ROUNDED):
            loaded, as_dtype = model, dtype
            if dtype in ROUNDED:
                files[dtype] = file = self.folder / f"{name.replace('/', '-')}-{dtype}.gguf"
                self.orchestrate("model", "convert", model, "--to", "gguf", "--dtype", dtype, "--out", file)
                loaded, as_dtype = file.with_suffix(""), "f32"
                self.orchestrate("model", "convert", file, "--to", "safetensors", "--dtype", "f32", "--out", loaded)
            self.other.load(loaded, as_dtype)
            self.costs[dtype] = cost = self.cost(*self.answers(self.other))
            print(f"{dtype:<12}{cost['rms']:>9.2g}{cost['stretch']:>9.2g}{cost['changed']:>5}/{cost['positions']:<4}"
                  f"{mean(cost['gaps']):>9.2g}{max(cost['gaps'], default=0):>9.2g}", flush=True)
        # The sum of all gaps at changed positions, for each position, divided by the squared cost.
        lost = sum(cost["changed"] * mean(cost["gaps"]) for cost in self.costs.values())
        self.density = lost / sum(cost["positions"] * cost["rms"] ** 2 for cost in self.costs.values())
        reach = max(gap / cost["rms"] for cost in self.costs.values() for gap in cost["gaps"])
        print(f"lost nats per position: {self.density:.2g} times the squared cost; largest gap: {reach:.2g} times the cost\n")
        print(f"{'':<32}{'reported':<16}{'rms':>8}{'stretch':>8}{'/ cost':>7}{'stretch':>8}{'differing':>11}{'max gap':>9}{'lost / cost':>12}", flush=True)
        for label, program, dtype, fields in ENGINES:
            file = model
            if dtype is not None:
                if dtype not in files:
                    files[dtype] = self.folder / f"{name.replace('/', '-')}-{dtype}.gguf"
                    self.orchestrate("model", "convert", model, "--to", "gguf", "--dtype", dtype, "--out", files[dtype])
                file = files[dtype]
            self.row(label, program, file, fields)

    def answers(self, engine):
        answer = engine.request({"type": "score", "sequences": self.sequences, "most_likely": True})
        likeliest = zip(answer["most_likely_ids"], answer["most_likely_logprobs"], strict=True)
        return answer["logprobs"], [list(zip(*pair, strict=True)) for pair in likeliest]

    def cost(self, scores, likeliest):
        changed = [(window, index, ours[0], theirs[1])
                   for window, (our, their) in enumerate(zip(likeliest, self.likeliest, strict=True))
                   for index, (ours, theirs) in enumerate(zip(our, their, strict=True)) if ours[0] != theirs[0]]
        gaps = []
        step = max(1, len(changed) // MAX_GAPS)
        for window, index, token, logprob in changed[::step]:
            gaps.append(logprob - self.f32.score([self.sequences[window][:index + 1] + [token]])[0][-1])
        positions = sum(map(len, self.likeliest))
        return differences(scores, self.expected) | {"changed": len(changed), "positions": positions, "gaps": gaps}

    def row(self, label, program, file, fields) -> None:
        engine = Engine([self.programs / program], self.folder / f"{program}.log")
        try:
            loaded = engine.request({"type": "load", "model": str(file), "device": "cpu", "threads": 1, **fields})
            found = differences(engine.score(self.sequences), self.expected)
            outputs = [engine.generate(prompt, NEW_TOKENS) for prompt in self.prompts]
        except Failed as error:
            print(f"{label:<32}{str(error).splitlines()[0]}", flush=True)
            return
        finally:
            engine.end()
        weights, compute, kv = (loaded.get(field) for field in ("weights_dtype", "compute_dtype", "kv_dtype"))
        dtypes = self.rounding(weights, compute, kv)
        cost = {key: math.hypot(*[self.costs[dtype][key] for dtype in dtypes]) for key in ("rms", "stretch")}
        lost, differing, largest, positions = 0.0, 0, 0.0, 0
        for prompt, output in zip(self.prompts, outputs, strict=True):
            answer = self.f32.request({"type": "score", "sequences": [prompt + output], "most_likely": True})
            start, seen = len(prompt) - 1, {}
            logprobs, ids, likeliest = (answer[key][0][start:] for key in ("logprobs", "most_likely_ids", "most_likely_logprobs"))
            for token, logprob, id, best in zip(output, logprobs, ids, likeliest, strict=True):
                if token != id:
                    seen[token, id] = max(best - logprob, seen.get((token, id), 0.0))
            lost, differing, positions = lost + sum(seen.values()), differing + len(seen), positions + len(output)
            largest = max(largest, *seen.values(), 0.0)
        expected = positions * self.density * cost["rms"] ** 2
        over = lambda value, by: f"{value / by:.2g}" if by else "-"
        print(f"{label:<32}{'/'.join(str(it) for it in (weights, compute, kv)):<16}{found['rms']:>8.2g}{found['stretch']:>8.2g}"
              f"{over(found['rms'], cost['rms']):>7}{over(found['stretch'], cost['stretch']):>8}"
              f"{differing:>6}/{positions:<4}{largest:>9.2g}{over(lost, expected):>12}", flush=True)

    def rounding(self, weights, compute, kv):
        """The measured dtypes in which an engine rounds. Kernels for narrow weights also round activations, about as bf16 does.
        The models' own numbers are bf16, so weights in bf16 and f32 are not rounded."""
        dtypes = {weights} - {"bf16", "bf16z", "f32"} | {compute or weights} | ({kv} if kv else set())
        dtypes = {dtype for dtype in dtypes if dtype in self.costs}
        return sorted(dtypes | ({"bf16"} if dtypes & set(ROUNDED) else set()))


def differences(scores, expected):
    all = [[a - b for a, b in zip(*pair, strict=True)] for pair in zip(scores, expected, strict=True)]
    starts = [range(0, len(values) - STRETCH_TOKENS // 2, STRETCH_TOKENS) for values in all]
    stretches = [rms(values[start:start + STRETCH_TOKENS]) for values, of in zip(all, starts, strict=True) for start in of]
    return {"rms": rms([value for values in all for value in values]), "stretch": max(stretches)}


def mean(values) -> float:
    return sum(values) / len(values) if values else 0.0


def prompts(model: Path) -> list[list[int]]:
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    begin = tokenizer.encode("").ids
    ids = tokenizer.encode((EMBEDDED / "heldout.txt").read_text(encoding="utf-8")).ids[len(begin):]
    step = len(ids) // (PROMPTS + 1)
    return [begin + ids[step * part:step * part + PROMPT_TOKENS - len(begin)] for part in range(1, PROMPTS + 1)]


if __name__ == "__main__":
    sys.exit(main())
