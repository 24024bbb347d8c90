"""Measures the differences of correct and of wrong engines from a verifier in f32. The bounds of the verification status come
from these results.

It prints a row for each model and each way to compute it: the root mean square of the differences of log-probabilities over
the held-out text (`rms`), the same over its worst stretch of 128 tokens (`stretch`), the median and the largest absolute
difference, and the gaps of log-probability between the engine's greedy tokens and the verifier's own. `correct` rows are candle
in seven dtypes, the verifier on quantized weights, and candle compared with the verifier on the same quantized weights. A
`wrong` row is the verifier in f32 on a copy of the model with one mistake, or without the first id."""

import argparse
import json
import math
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts/llama-cpp"))

from tokenizers import Tokenizer  # noqa: E402

import mistakes  # noqa: E402
from programs import Failed, Orchestrate, ProtocolEngine  # noqa: E402

EMBEDDED = ROOT / "models/embedded"
# The lengths of the scored windows, in tokens. The first is the length of the longest window of an output check.
CHECK_LENGTHS = (1152, 256)
STRETCH_TOKENS = 128
PROMPT_TOKENS, NEW_TOKENS = 128, 64
QUANTIZED = ("q8_0", "q6_k", "q4_k", "q4_0")


class Engine(ProtocolEngine):
    """Any engine of this repository, with a loaded model."""

    def load(self, model: Path, dtype: str | None = "f32") -> "Engine":
        dtype = {"dtype": dtype} if dtype else {}
        self.request({"type": "load", "model": str(model), "device": "cpu", "threads": 1, **dtype})
        return self

    def score(self, sequences):
        return self.request({"type": "score", "sequences": sequences})["logprobs"]

    def generate(self, prompt, count):
        request = {"type": "generate", "prompt_ids": prompt, "max_new_tokens": count, "ignore_eos": True}
        return self.request(request)["iterations"][0]["sequences"][0]["output_ids"]


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--programs", type=Path, required=True, help="the folder of the built programs")
    arguments.add_argument("--json", type=Path, help="add a line of JSON for each row to this file")
    arguments.add_argument("--correct-only", action="store_true")
    arguments.add_argument("--wrong-only", action="store_true")
    arguments.add_argument("models", nargs="*", help="`embedded`, a shape, or a shape with a number of layers: "
                           "`llama-3.2-1b/4`; default `embedded` and `tiny-llama`")
    arguments = arguments.parse_args()
    with tempfile.TemporaryDirectory(prefix="agreement-") as folder:
        calibration = Calibration(arguments, Path(folder))
        for name in arguments.models or ["embedded", "tiny-llama"]:
            calibration.calibrate(name)
        calibration.end()
    return 0


class Calibration:
    def __init__(self, arguments, folder: Path):
        self.options, self.folder, programs = arguments, folder, arguments.programs
        self.orchestrate = Orchestrate(programs / "orchestrate")
        self.candle = Engine([programs / "candle-engine"], folder / "candle.log")
        self.verifier = Engine([programs / "pytorch-baseline"], folder / "verifier.log")
        # `second_verifier` computes rows. `verifier` keeps the correct model loaded, for the expected values and the gaps.
        self.second_verifier = Engine([programs / "pytorch-baseline"], folder / "second-verifier.log")
        self.json = open(arguments.json, "a", encoding="utf-8") if arguments.json else None

    def calibrate(self, name: str) -> None:
        model = self.make_model(name)
        sequences = held_out_windows(model)
        print(f"\n{name}: {len(sequences)} sequences of {', '.join(str(len(ids)) for ids in sequences)} ids")
        print(f"{'':<52}{'rms':>9}{'stretch':>9}{'median':>9}{'largest':>8}{'mean gap':>9}{'max gap':>8}{'same ids':>9}", flush=True)
        expected = self.verifier.load(model).score(sequences)
        if not self.options.wrong_only:
            self.correct_rows(name, model, sequences, expected)
        if not self.options.correct_only:
            self.wrong_rows(name, model, sequences, expected)

    def make_model(self, name: str) -> Path:
        if name == "embedded":
            return EMBEDDED
        folder, (shape, _, layers) = self.folder / name.replace("/", "-"), name.partition("/")
        arguments = [shape]
        if layers:
            config = json.loads((ROOT / f"models/shapes/{shape}.json").read_text(encoding="utf-8"))["config"]
            config["num_hidden_layers"] = int(layers)
            (file := self.folder / f"{shape}.json").write_text(json.dumps(config), encoding="utf-8")
            arguments = ["--config", file]
        self.orchestrate("model", "synth", *arguments, "--out", folder)
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        config["max_position_embeddings"] = max(config["max_position_embeddings"], 2048)
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        return folder

    def correct_rows(self, name, model, sequences, expected) -> None:
        for dtype in ("f32", "bf16", "f16"):
            self.row(name, "correct", f"candle, {dtype}", self.candle, (model, dtype), sequences, expected)
        for dtype in QUANTIZED:
            file = self.folder / f"{name.replace('/', '-')}-{dtype}.gguf"
            self.orchestrate("model", "convert", model, "--to", "gguf", "--dtype", dtype, "--out", file)
            scores = self.row(name, "correct", f"candle, {dtype}", self.candle, (file, None), sequences, expected)
            # The verifier on the quantized weights: the expected result of an engine that loads the file.
            quantized = self.folder / f"{name.replace('/', '-')}-{dtype}"
            self.orchestrate("model", "convert", file, "--to", "safetensors", "--dtype", "f32", "--out", quantized)
            quantized_scores = self.second_verifier.load(quantized).score(sequences)
            self.row(name, "correct", f"verifier, weights of {dtype} in f32", quantized_scores, None, sequences, expected)
            self.row(name, "correct", f"candle, {dtype}, compared with the row above", scores, None, sequences, quantized_scores)
            file.unlink()

    def wrong_rows(self, name, model, sequences, expected) -> None:
        for mistake in mistakes.MISTAKES:
            copy = mistakes.copy_with(model, mistake, self.folder)
            self.row(name, "wrong", mistake.__name__.replace("_", " "), self.second_verifier, (copy, "f32"), sequences, expected)
        self.row(name, "wrong", "first id left out", self.scores_without_first(model, sequences), None, sequences, expected)
        for original_context, factor in ((128, 8.0), (256, 8.0), (512, 8.0), (1024, 8.0), (1024, 32.0), (8192, 32.0)):
            scaling = mistakes.scaled(original_context, factor)
            scaling.__name__ = f"scaled-{original_context}-{factor}"
            scaled = mistakes.copy_with(model, scaling, self.folder)
            unscaled = scaled.with_name(f"{scaled.name}-ignored")
            if not unscaled.exists():
                copy = mistakes.Copy(scaled)
                mistakes.scaling_ignored(copy)
                copy.write(unscaled)
            expected_scaled = self.verifier.load(scaled).score(sequences)
            label = f"RoPE scaling by {factor:g} above {original_context} ids ignored"
            self.row(name, "wrong", label, self.second_verifier, (unscaled, "f32"), sequences, expected_scaled)
        self.verifier.load(model)

    def scores_without_first(self, model, sequences):
        scores = self.second_verifier.load(model).score([ids[1:] for ids in sequences])
        return [[values[0], *values] for values in scores]

    def row(self, name, kind, label, engine_or_scores, load_arguments, sequences, expected):
        """Prints a row, or the error of the engine. Scores have no `load_arguments`."""
        continued = None
        try:
            if load_arguments:
                engine_or_scores.load(*load_arguments)
                scores = engine_or_scores.score(sequences)
                continued = engine_or_scores.generate(sequences[0][:PROMPT_TOKENS], NEW_TOKENS)
            else:
                scores = engine_or_scores
        except Failed as error:
            print(f"{kind:<8}{label:<44}  {error}", flush=True)
            return None
        differences = [[a - b for a, b in zip(*pair, strict=True)] for pair in zip(scores, expected, strict=True)]
        absolute = sorted(abs(value) for values in differences for value in values)
        # The rest after the last stretch counts if it is longer than half a stretch.
        stretches = [rms(values[start:start + STRETCH_TOKENS]) for values in differences for start in range(0, len(values) - STRETCH_TOKENS // 2, STRETCH_TOKENS)]
        results = {
            "model": name, "kind": kind, "what": label, "rms": rms([value for values in differences for value in values]),
            "stretch": max(stretches), "median": absolute[len(absolute) // 2], "largest": absolute[-1],
            "stretches": stretches, "bias": sum(value for values in differences for value in values) / len(absolute),
        }
        if continued is not None:
            gaps = self.gaps(sequences[0][:PROMPT_TOKENS], continued)
            results |= {"mean_gap": sum(gaps) / len(gaps), "max_gap": max(gaps), "same_ids": sum(gap == 0.0 for gap in gaps)}
        line = f"{kind:<8}{label:<44}{results['rms']:>9.2g}{results['stretch']:>9.2g}{results['median']:>9.2g}{results['largest']:>8.2g}"
        if continued is not None:
            line += f"{results['mean_gap']:>9.2g}{results['max_gap']:>8.2g}{results['same_ids']:>9}"
        print(line, flush=True)
        if self.json:
            self.json.write(json.dumps(results) + "\n")
            self.json.flush()
        return scores

    def gaps(self, prompt, continued) -> list[float]:
        """For each token, by how much its log-probability is below that of the verifier's own greedy token after the same ids."""
        gaps = []
        scores = self.verifier.score([prompt + continued])[0][len(prompt) - 1:]
        for index, id in enumerate(continued):
            prefix = prompt + continued[:index]
            greedy_id = self.verifier.generate(prefix, 1)[0]
            gaps.append(0.0 if greedy_id == id else self.verifier.score([prefix + [greedy_id]])[0][-1] - scores[index])
        return gaps

    def end(self) -> None:
        for engine in (self.candle, self.verifier, self.second_verifier):
            engine.end()


def rms(values) -> float:
    return math.sqrt(sum(value * value for value in values) / len(values))


def held_out_windows(model: Path) -> list[list[int]]:
    """Windows of the held-out text, each after the ids that the tokenizer puts before a text (BOS)."""
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    begin = tokenizer.encode("").ids
    ids = tokenizer.encode((EMBEDDED / "heldout.txt").read_text(encoding="utf-8")).ids[len(begin):]
    windows, start = [], 4000  # ids, far from the beginning of the text
    for length in CHECK_LENGTHS:
        count = length - len(begin)
        windows.append(begin + ids[start:start + count])
        start += count
    return windows


if __name__ == "__main__":
    sys.exit(main())
