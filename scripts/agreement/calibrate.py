"""How far correct engines lie from an f32 one, and how far wrong ones: where the bounds of a standing come from.

For every model a row for each way to compute it: root mean square of the differences of log-probabilities over the held-out
text, the same in its worst stretch, and what the witness would have given up by each of the tokens that the engine goes on
with. `correct` rows are candle and the reference in every dtype that they have; a `wrong` row is the reference on a copy of
the model with one mistake in it, which is f32 and thus wrong by that mistake alone.
"""

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
from programs import Failed, Orchestrate, Reference  # noqa: E402

EMBEDDED = ROOT / "models/embedded"
# As long as what a run asks.
LENGTHS = (1152, 256)
STRETCH = 128
PROMPT, NEW_TOKENS = 128, 64
QUANTISED = ("q8_0", "q6_k", "q4_k", "q4_0")


class Engine(Reference):
    """Any engine of the tree: one that has loaded something, and is asked."""

    def load(self, model: Path, dtype: str | None = "f32") -> "Engine":
        dtype = {"dtype": dtype} if dtype else {}
        self.ask({"type": "load", "model": str(model), "device": "cpu", "threads": 1, **dtype})
        return self

    def score(self, sequences):
        return self.ask({"type": "score", "sequences": sequences})["logprobs"]

    def go_on(self, prompt, count):
        asked = {"type": "generate", "prompt_ids": prompt, "max_new_tokens": count, "ignore_eos": True}
        return self.ask(asked)["iterations"][0]["sequences"][0]["output_ids"]


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--programs", type=Path, required=True, help="the folder of the built programs")
    arguments.add_argument("--json", type=Path, help="where to write the figures, a line for each row")
    arguments.add_argument("--correct-only", action="store_true")
    arguments.add_argument("--wrong-only", action="store_true")
    arguments.add_argument("models", nargs="*", help="`embedded`, the name of a shape, or of one and a number of layers: "
                           "`llama-3.2-1b/4`; unless told `embedded` and `tiny-llama`")
    arguments = arguments.parse_args()
    with tempfile.TemporaryDirectory(prefix="agreement-") as folder:
        calibration = Calibration(arguments, Path(folder))
        for name in arguments.models or ["embedded", "tiny-llama"]:
            calibration.model(name)
        calibration.end()
    return 0


class Calibration:
    def __init__(self, arguments, folder: Path):
        self.asked, self.folder, programs = arguments, folder, arguments.programs
        self.orchestrate = Orchestrate(programs / "orchestrate")
        self.candle = Engine([programs / "candle-engine"], folder / "candle.log")
        self.witness = Engine([programs / "pytorch-baseline"], folder / "witness.log")
        self.other = Engine([programs / "pytorch-baseline"], folder / "other.log")
        self.json = open(arguments.json, "a", encoding="utf-8") if arguments.json else None

    def model(self, name: str) -> None:
        model = self.made(name)
        sequences = sequences_of(model)
        print(f"\n{name}: {len(sequences)} sequences of {', '.join(str(len(ids)) for ids in sequences)} ids")
        print(f"{'':<44}{'rms':>9}{'stretch':>9}{'median':>9}{'most':>8}{'mean gap':>9}{'worst':>8}{'equal':>7}", flush=True)
        expected = self.witness.load(model).score(sequences)
        if not self.asked.wrong_only:
            self.correct(name, model, sequences, expected)
        if not self.asked.correct_only:
            self.wrong(name, model, sequences, expected)

    def made(self, name: str) -> Path:
        if name == "embedded":
            return EMBEDDED
        folder, (shape, _, layers) = self.folder / name.replace("/", "-"), name.partition("/")
        named = [shape]
        if layers:
            config = json.loads((ROOT / f"models/shapes/{shape}.json").read_text(encoding="utf-8"))["config"]
            config["num_hidden_layers"] = int(layers)
            (file := self.folder / f"{shape}.json").write_text(json.dumps(config), encoding="utf-8")
            named = ["--config", file]
        self.orchestrate("model", "synth", *named, "--out", folder)
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        config["max_position_embeddings"] = max(config["max_position_embeddings"], 2048)
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        return folder

    def correct(self, name, model, sequences, expected) -> None:
        for dtype in ("f32", "bf16", "f16"):
            self.row(name, "correct", f"candle, {dtype}", self.candle, (model, dtype), sequences, expected)
        for dtype in QUANTISED:
            file = self.folder / f"{name.replace('/', '-')}-{dtype}.gguf"
            self.orchestrate("model", "convert", model, "--to", "gguf", "--dtype", dtype, "--out", file)
            told = self.row(name, "correct", f"candle, {dtype}", self.candle, (file, None), sequences, expected)
            # The witness on what the file holds: this is how an engine stands that was given the file.
            held = self.folder / f"{name.replace('/', '-')}-{dtype}"
            self.orchestrate("model", "convert", file, "--to", "safetensors", "--dtype", "f32", "--out", held)
            numbers = self.other.load(held).score(sequences)
            self.row(name, "correct", f"candle, {dtype}, against the same numbers", told, None, sequences, numbers)
            self.row(name, "correct", f"the numbers of {dtype} in f32", numbers, None, sequences, expected)
            file.unlink()

    def wrong(self, name, model, sequences, expected) -> None:
        for mistake in mistakes.MISTAKES:
            copy = mistakes.spoiled(model, mistake, self.folder)
            self.row(name, "wrong", mistake.__name__.replace("_", " "), self.other, (copy, "f32"), sequences, expected)
        self.row(name, "wrong", "first id left out", self.without_first(model, sequences), None, sequences, expected)
        for original, factor in ((128, 8.0), (256, 8.0), (512, 8.0), (1024, 8.0), (1024, 32.0), (8192, 32.0)):
            scaling = mistakes.scaled(original, factor)
            scaling.__name__ = f"scaled-{original}-{factor}"
            scaled = mistakes.spoiled(model, scaling, self.folder)
            ignorant = scaled.with_name(f"{scaled.name}-ignored")
            if not ignorant.exists():
                copy = mistakes.Copy(scaled)
                mistakes.scaling_ignored(copy)
                copy.write(ignorant)
            witness = self.witness.load(scaled).score(sequences)
            label = f"scaling by {factor:g} from {original} ignored"
            self.row(name, "wrong", label, self.other, (ignorant, "f32"), sequences, witness)
        self.witness.load(model)

    def without_first(self, model, sequences):
        told = self.other.load(model).score([ids[1:] for ids in sequences])
        return [[values[0], *values] for values in told]

    def row(self, name, kind, label, engine, loads, sequences, expected):
        """An engine that fails has printed its reason; the others go on."""
        continued = None
        try:
            if loads:
                engine.load(*loads)
                told = engine.score(sequences)
                continued = engine.go_on(sequences[0][:PROMPT], NEW_TOKENS)
            else:
                told = engine
        except Failed as error:
            print(f"{kind:<8}{label:<36}  {error}", flush=True)
            return None
        apart = [[a - b for a, b in zip(ours, theirs, strict=True)] for ours, theirs in zip(told, expected, strict=True)]
        whole = sorted(abs(value) for values in apart for value in values)
        stretches = [rms(values[at:at + STRETCH]) for values in apart for at in range(0, len(values) - STRETCH // 2, STRETCH)]
        figures = {
            "model": name, "kind": kind, "what": label, "rms": rms([value for values in apart for value in values]),
            "stretch": max(stretches), "median": whole[len(whole) // 2], "most": whole[-1],
            "stretches": stretches, "bias": sum(value for values in apart for value in values) / len(whole),
        }
        if continued is not None:
            gaps = self.gaps(sequences[0][:PROMPT], continued)
            figures |= {"gap": sum(gaps) / len(gaps), "worst": max(gaps), "equal": sum(gap == 0.0 for gap in gaps)}
        shown = f"{kind:<8}{label:<36}{figures['rms']:>9.2g}{figures['stretch']:>9.2g}{figures['median']:>9.2g}{figures['most']:>8.2g}"
        if continued is not None:
            shown += f"{figures['gap']:>9.2g}{figures['worst']:>8.2g}{figures['equal']:>7}"
        print(shown, flush=True)
        if self.json:
            self.json.write(json.dumps(figures) + "\n")
            self.json.flush()
        return told

    def gaps(self, prompt, continued) -> list[float]:
        """For each token, how much less likely the witness finds it than its own, given all before it."""
        gaps = []
        theirs = self.witness.score([prompt + continued])[0][len(prompt) - 1:]
        for place, id in enumerate(continued):
            before = prompt + continued[:place]
            own = self.witness.go_on(before, 1)[0]
            gaps.append(0.0 if own == id else self.witness.score([before + [own]])[0][-1] - theirs[place])
        return gaps

    def end(self) -> None:
        for engine in (self.candle, self.witness, self.other):
            engine.end()


def rms(values) -> float:
    return math.sqrt(sum(value * value for value in values) / len(values))


def sequences_of(model: Path) -> list[list[int]]:
    """Windows of the held-out text, each begun as the tokenizer begins a text."""
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    begin = tokenizer.encode("").ids
    ids = tokenizer.encode((EMBEDDED / "heldout.txt").read_text(encoding="utf-8")).ids[len(begin):]
    windows, at = [], 4000
    for length in LENGTHS:
        taken = length - len(begin)
        windows.append(begin + ids[at:at + taken])
        at += taken
    return windows


if __name__ == "__main__":
    sys.exit(main())
