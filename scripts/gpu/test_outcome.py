"""What is said of reports that no machine here could write."""

import unittest

import outcome


def case(label, samples, failure=None):
    return {"engine": {"label": label}, "samples": samples, "failure": failure}


def output(engine, standing, rms=None, equal=0, compared=0, reasons=()):
    return {
        "engine": engine,
        "standing": standing,
        "against": {"whom": "engine", "label": "it (witness)"},
        "scores": None if rms is None else {"rms": rms, "tokens": 1659},
        "greedy": {"equal": equal, "compared": compared},
        "reasons": list(reasons),
    }


class Outcome(unittest.TestCase):
    def test_each_engine_has_its_standing_or_why_it_was_not_measured(self):
        report = {
            "cases": [case("near", 9), case("far", 9), case("broken", 0, {"message": "it fell over"})],
            "failed": [{"engine": {"label": "absent"}, "failure": {"message": "not built"}}],
            "outputs": [output("near", "agrees", 0.0123, 47, 48), output("far", "wrong", 2.0, 0, 48, ["its ids differ"])],
        }
        self.assertEqual(
            outcome.outcome(report, "cuda", "r.jsonl"),
            [
                "  absent: not measured: not built",
                "  broken: not measured: it fell over",
                "  far: wrong (2 nats from f32 over 1659 tokens; 0 of 48 greedy ids the same; its ids differ)",
                "  near: agrees (0.012 nats from f32 over 1659 tokens; 47 of 48 greedy ids the same)",
                "  record: r.jsonl",
            ],
        )

    def test_one_that_failed_in_a_part_and_was_shown_to_nobody_says_both(self):
        report = {"cases": [case("half", 9), case("half", 0, {"message": "no room"})], "failed": [], "outputs": []}
        [line, _] = outcome.outcome(report, "cuda", "r.jsonl")
        self.assertEqual(line, "  half: unverified; a part of it failed: no room")

    def test_a_gpu_that_the_programs_were_not_built_for_is_told_with_what_packs_them(self):
        gpu = {"name": "Pretence", "compute_capability": "8.0", "driver": "580.1"}
        self.assertEqual(outcome.gpus([gpu], "80"), ["  GPU: Pretence, compute capability 8.0, driver 580.1"])
        [_, warning, hint] = outcome.gpus([gpu], "90")
        self.assertIn("built for 90, and this one is 80", warning)
        self.assertIn("CUDA_COMPUTE_CAP=80 scripts/gpu-check --pack", hint)
        self.assertEqual(len(outcome.gpus([{"name": "a part of one"}], "90")), 1)


if __name__ == "__main__":
    unittest.main()
