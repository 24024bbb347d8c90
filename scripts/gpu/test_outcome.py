"""Tests `outcome.py` on invented reports: the lines that it prints, and which reports make `scripts/gpu-check` fail."""

import os
import tempfile
import unittest
from pathlib import Path

import outcome

MANIFESTS = {
    "compiled": 'binary = "compiled-engine"\n[devices.cuda]\nbinary = "compiled-cuda"\n',
    "library": 'binary = "library-engine"\n[environment]\npython = "3.12"\n[needs]\ndriver = "nvidia"\n',
    "verifier": 'binary = "verifier-engine"\nreference = true\n[environment]\npython = "3.12"\n[devices.cuda.needs]\n',
    "processors": 'binary = "processors-engine"\n[needs]\nos = ["linux"]\n[load]\ndevices = ["cpu"]\n',
    "gpus": 'binary = "gpus-engine"\n[needs]\ndriver = "nvidia"\n[load]\ndevices = ["cuda"]\n',
}
NO_DRIVER = {"kind": "unavailable", "message": "no NVIDIA driver found"}
NOT_BUILT = {"kind": "unavailable", "message": "not built"}


def engine(label):
    return {"label": label, "name": label.split(":")[0]}


def case(label, samples, failure=None):
    return {"engine": engine(label), "samples": samples, "failure": failure}


def report(cases=(), failed=(), outputs=()):
    failed = [{"engine": engine(label), "failure": failure} for label, failure in failed]
    return {"cases": list(cases), "failed": failed, "outputs": list(outputs)}


def output(engine, status, rms=None, equal=0, compared=0, reasons=()):
    return {
        "engine": engine,
        "status": status,
        "against": {"kind": "engine", "label": "engine (verifier)"},
        "scores": None if rms is None else {"rms": rms, "tokens": 1659},
        "greedy": {"equal": equal, "compared": compared},
        "reasons": list(reasons),
    }


class Outcome(unittest.TestCase):
    def setUp(self):
        tree = Path(self.enterContext(tempfile.TemporaryDirectory()))
        for name, manifest in MANIFESTS.items():
            (tree / "engines" / name).mkdir(parents=True)
            (tree / "engines" / name / "engine.toml").write_text(manifest)
        (tree / "programs").mkdir()
        for program in ["library-engine", "compiled-cuda"]:
            (tree / "programs" / program).touch()
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(tree)

    def test_each_engine_has_its_status_or_the_reason_why_it_was_not_measured(self):
        crash = {"kind": "exited", "message": "it crashed"}
        document = report(
            [case("near", 9), case("far", 9), case("broken", 0, crash)],
            [("absent", NOT_BUILT), ("library", NO_DRIVER)],
            [output("near", "agrees", 0.0123, 47, 48), output("far", "wrong", 2.0, 0, 48, ["its ids differ"])],
        )
        lines, code = outcome.outcome(document, "cuda", "r.jsonl")
        self.assertEqual(
            lines,
            [
                "  absent: not measured: not built",
                "  broken: not measured: it crashed",
                "  far: wrong (2 nats from f32 over 1659 tokens; 0 of 48 greedy ids the same; its ids differ)",
                "  library: left out: no NVIDIA driver found",
                "  near: agrees (0.012 nats from f32 over 1659 tokens; 47 of 48 greedy ids the same)",
                "  record: r.jsonl",
            ],
        )
        self.assertEqual(code, outcome.FAILED)

    def test_an_engine_for_processors_is_left_out_on_a_gpu_unless_it_crashes(self):
        unsupported = {"kind": "unsupported", "message": "no device `cuda`"}
        crash = {"kind": "exited", "message": "it crashed"}
        for failure, device, code in [
            (NOT_BUILT, "cuda", outcome.DONE),
            (unsupported, "cuda:1", outcome.DONE),
            (unsupported, "cpu", outcome.FAILED),
            (crash, "cuda", outcome.FAILED),
        ]:
            document = report([case("near", 9)], [("processors", failure)], [output("near", "exact")])
            lines, exit_code = outcome.outcome(document, device, "r.jsonl", outcome.FAILED)
            result = "left out" if code == outcome.DONE else "not measured"
            self.assertEqual((lines[1], exit_code), (f"  processors: {result}: {failure['message']}", code))

    def test_an_engine_for_gpus_is_left_out_on_a_processor(self):
        unsupported = {"kind": "unsupported", "message": "no device `cpu`; it has `cuda`"}
        self.assertEqual(self.code([("gpus", unsupported)], device="cpu"), outcome.DONE)
        self.assertEqual(self.code([("gpus", unsupported)], device="cuda"), outcome.FAILED)
        self.assertEqual(self.code([("gpus", {"kind": "exited", "message": "killed"})], device="cpu"), outcome.FAILED)

    def test_the_line_of_a_partly_measured_engine_has_its_failure(self):
        document = report([case("half", 9), case("half", 0, {"kind": "timeout", "message": "no answer in time"})])
        [line, _], code = outcome.outcome(document, "cuda", "r.jsonl")
        self.assertEqual((line, code), ("  half: unverified; a part of it failed: no answer in time", outcome.FAILED))

    def code(self, failed=(), device="cuda", code=0, status="exact"):
        document = report([case("good", 9)], failed, [output("good", status)])
        return outcome.outcome(document, device, "r.jsonl", code)[1]

    def test_a_packed_engine_that_was_not_measured_is_a_failure(self):
        self.assertEqual(self.code(), outcome.DONE)
        other_gpu = {"kind": "unavailable", "message": "compiled for sm_90a, and this GPU is 8.0"}
        for label, failure in [("compiled", other_gpu), ("compiled", NOT_BUILT), ("verifier", NO_DRIVER)]:
            self.assertEqual(self.code([(label, failure)]), outcome.FAILED, label)
        self.assertEqual(self.code([("library", {"kind": "exited", "message": "killed"})]), outcome.FAILED)

    def test_a_missing_library_and_a_preset_for_another_device_are_no_failures(self):
        self.assertEqual(self.code([("library", NO_DRIVER)]), outcome.DONE)
        unsupported = {"kind": "unsupported", "message": "`own_pool` is for the CPU"}
        # The exit code of the run counts this failure.
        self.assertEqual(self.code([("compiled:own-pool", unsupported)], code=4), outcome.DONE)
        self.assertEqual(self.code([("compiled", unsupported)], code=4), outcome.FAILED)
        # The program for the processor is not packed.
        self.assertEqual(self.code([("compiled", NOT_BUILT)], device="cpu"), outcome.DONE)

    def test_a_wrong_engine_an_unknown_failure_and_a_report_without_samples_are_failures(self):
        self.assertEqual(self.code(status="wrong"), outcome.FAILED)
        self.assertEqual(self.code(code=4), outcome.FAILED)
        self.assertEqual(outcome.outcome(report(failed=[("library", NO_DRIVER)]), "cuda", "r.jsonl")[1], outcome.FAILED)

    def test_hints_that_need_a_build_are_replaced(self):
        for hint, device, expected in [
            ("orchestrate setup compiled", "cpu", "where there is Rust: cargo run --release -- setup compiled"),
            ("orchestrate setup verifier", "cuda", "where there is Rust: scripts/gpu-check --pack"),
            ("orchestrate setup library", "cuda", "export ORCHESTRATE_PYTHON=/a/python/that/has/its/library"),
            ("nvidia-smi", "cuda", "nvidia-smi"),
        ]:
            self.assertEqual(outcome.replace_hint(f"  hint: {hint}\n", device, "programs"), f"  hint: {expected}\n")

    def test_a_gpu_for_which_the_programs_were_not_built_is_reported_with_the_command_that_packs_them(self):
        gpu = {"name": "Pretence", "compute_capability": "8.0", "driver": "580.1"}
        self.assertEqual(outcome.gpus([gpu], "80"), ["  GPU: Pretence, compute capability 8.0, driver 580.1"])
        self.assertEqual(len(outcome.gpus([gpu], "80a")), 1)
        [_, warning, hint] = outcome.gpus([gpu], "90")
        self.assertIn("built for compute capability 90, and this GPU has 80", warning)
        self.assertIn("CUDA_COMPUTE_CAP=80 scripts/gpu-check --pack", hint)
        self.assertEqual(len(outcome.gpus([{"name": "a part of a GPU"}], "90")), 1)


if __name__ == "__main__":
    unittest.main()
