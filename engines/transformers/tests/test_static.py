"""Tests static caches, and traced, captured or compiled decode steps."""

import unittest
from types import SimpleNamespace
from unittest import mock

from stand_in import stand_in_for_cuda_graphs
from support import CONFIG, load, random_weights, write_folder

from engine_tests import FULL_TESTS, generate
import torch

# This import must precede all stand-ins, because libraries inspect the machine at import.
import loading  # noqa: F401
from engine_kit import Failed, Phases
from static_cache import StaticCachePath, capacity_for

IDS = [0, 17, 42, 9]
RAGGED_PROMPTS = [[0, 17, 42, 9, 3, 8], [0, 5], [7]]


class Capacities(unittest.TestCase):
    def test_a_capacity_doubles_until_the_request_fits_and_is_at_most_the_context(self):
        capacities = [capacity_for(tokens, 256, 2048) for tokens in (1, 256, 257, 512, 513, 1500, 2048)]
        self.assertEqual(capacities, [256, 256, 512, 512, 1024, 2048, 2048])
        self.assertEqual(capacity_for(90, 256, 128), 128)
        self.assertEqual(capacity_for(700, 256, 1000), 1000)
        self.assertEqual(capacity_for(700, 256, None), 1024)

    def test_a_request_may_fill_the_whole_context(self):
        folder = write_folder(self)
        prompt = [id % 64 for id in range(120)]
        expected = generate(load(folder), [prompt], 8, ignore_eos=True)
        self.assertEqual(generate(load(folder, {"path": "jit"}), [prompt], 8, ignore_eos=True), expected)

    def test_at_most_8_decode_states_are_kept_and_a_dropped_state_is_made_again(self):
        model = load(write_folder(self), {"path": "jit", "cache_tokens": 16})
        expected = generate(model, [IDS], 5, ignore_eos=True)
        for sequences in range(2, 12):
            self.assertEqual(generate(model, [IDS] * sequences, 5, ignore_eos=True), expected * sequences)
        self.assertLessEqual(len(model._states), 8)
        self.assertEqual(generate(model, [IDS], 5, ignore_eos=True), expected)

    def test_a_window_that_ends_inside_the_cache_is_refused(self):
        config = {**CONFIG, "model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": 32}
        folder = write_folder(self, config, random_weights(CONFIG))
        with self.assertRaises(Failed) as caught:
            load(folder, {"path": "jit"})
        self.assertEqual((caught.exception.kind, caught.exception.hint), ("unsupported", "--set path=loop"))
        self.assertIn("architecture `mistral` attends only to the last 32", caught.exception.message)
        # A cache that is not longer than the window gives the same results.
        expected = generate(load(folder), [IDS], 12, ignore_eos=True)
        model = load(folder, {"path": "jit", "cache_tokens": 32})
        self.assertEqual(generate(model, [IDS], 12, ignore_eos=True), expected)


class CapturedSteps(unittest.TestCase):
    """Tests captured steps with a stand-in for CUDA graphs."""

    def load_cuda_path(self, folder, path):
        """Loads a decode path for CUDA on the CPU, without the check of options, which would refuse this path."""
        loaded = load(folder, {"path": "loop"}).loaded
        changes = dict(path=path, compiler="torchscript", cache_tokens=64)
        loaded.options = SimpleNamespace(**{**vars(loaded.options), **changes})
        return StaticCachePath(loaded)

    def test_a_captured_step_gives_the_tokens_of_the_plain_loop(self):
        folder = write_folder(self)
        plain_loop = load(folder, {"path": "loop"})
        for path in ("cuda-graph", "jit-cuda-graph"):
            with stand_in_for_cuda_graphs() as graphs, torch.no_grad():
                model = self.load_cuda_path(folder, path)
                phases = Phases()
                model.prepare(phases)
                self.assertEqual([phase["name"] for phase in phases.times][-1], "capture")
                for prompts in ([IDS], RAGGED_PROMPTS, [[7, 7]], [IDS]):
                    for padding in ("left", "right"):
                        fields = dict(ignore_eos=True, padding=padding)
                        self.assertEqual(generate(model, prompts, 12, **fields), generate(plain_loop, prompts, 12, **fields))
                sampling = SimpleNamespace(temperature=1.0, top_k=0, top_p=None, seed=3)
                fields = dict(ignore_eos=True, sampling=sampling)
                self.assertEqual(generate(model, [IDS], 12, **fields), generate(plain_loop, [IDS], 12, **fields))
                # One graph for a single sequence, one graph for three sequences.
                self.assertEqual(len(graphs), 2)
            self.assertIn("captured CUDA graph", model.facts()["libraries"]["decode"])

    def test_a_failed_capture_fails_the_load(self):
        with stand_in_for_cuda_graphs(), torch.no_grad():
            with mock.patch("torch.cuda.graph", side_effect=RuntimeError("operation not permitted when stream is capturing")):
                with self.assertRaises(Failed) as caught:
                    self.load_cuda_path(write_folder(self), "cuda-graph").prepare(Phases())
        self.assertEqual(caught.exception.kind, "internal")
        self.assertIn("path `cuda-graph`: cannot make the decode step: RuntimeError: operation not", caught.exception.message)

    def test_fusion_off_keeps_the_cuda_graphs_of_the_mode(self):
        folder = write_folder(self)
        expected = generate(load(folder), [IDS], 12, ignore_eos=True)
        loaded = load(folder, {"path": "loop"}).loaded
        for mode, graph_count in [("reduce-overhead", 1), ("max-autotune", 1), ("default", 0)]:
            fields = dict(path="compile", fusion=False, mode=mode, cache_tokens=64)
            loaded.options = SimpleNamespace(**{**vars(loaded.options), **fields})
            # The stand-in records only uncompiled operations. Another test compiles a step with fusion off.
            with stand_in_for_cuda_graphs() as graphs, torch.no_grad(), mock.patch("static_cache.compile_step", lambda step, *_: step):
                with mock.patch("static_cache.wait_for"), mock.patch("static_cache.has_graphs", lambda device: True):
                    model = StaticCachePath(loaded)
                    model.prepare(Phases())
                    self.assertEqual(generate(model, [IDS], 12, ignore_eos=True), expected)
                    self.assertEqual(len(graphs), graph_count)
                    self.assertEqual("captured CUDA graph" in model.facts()["libraries"]["decode"], bool(graph_count))


class OptimisedSteps(unittest.TestCase):
    def test_a_step_with_wrong_logits_is_refused(self):
        model = load(write_folder(self), {"path": "jit", "cache_tokens": 64})
        wrong_results = torch.zeros(1, 64), torch.zeros(1, dtype=torch.long)
        with mock.patch("static_cache.trace_step", lambda state: lambda *inputs: wrong_results):
            with self.assertRaises(Failed) as caught:
                generate(model, [IDS], 100, ignore_eos=True)
        self.assertIn("its logits differ", caught.exception.message)

    def test_a_trace_with_a_constant_from_its_first_call_is_refused(self):
        # In each case one part of the state is constant; `written` is the number of written columns of the cache.
        for sequences, constant in [(1, "ids"), (1, "positions"), (1, "column"), (2, "is_token"), (1, "written")]:

            def traced(state):
                lengths = [layer.cumulative_length for layer in state.cache.layers]
                frozen = lengths if constant == "written" else [getattr(state, constant)]
                first_values = [tensor.clone() for tensor in frozen]

                # Computes with the first values, and then restores the current ones.
                def step(ids, *other_inputs):
                    current_values = [tensor.clone() for tensor in frozen]
                    for tensor, value in zip(frozen, first_values):
                        tensor.copy_(value)
                    results = state.step(state.ids if constant == "ids" else ids, *other_inputs)
                    for tensor, value in zip(frozen, current_values):
                        tensor.copy_(value)
                    return results

                return step

            model = load(write_folder(self), {"path": "jit", "cache_tokens": 64})
            model._states.clear(), model._steps.clear()
            with mock.patch("static_cache.trace_step", traced), self.assertRaises(Failed) as caught:
                generate(model, [IDS] * sequences, 5, ignore_eos=True)
            self.assertIn("path `jit`: the decode step computes something else", caught.exception.message)

    def test_logits_that_are_not_finite_fail_the_load(self):
        weights = random_weights(CONFIG)
        weights["lm_head.weight"][3] = float("inf")
        folder = write_folder(self, weights=weights)
        for dtype, hint in [("f32", None), ("bf16", "--dtype f32")]:
            with self.assertRaises(Failed) as caught:
                load(folder, {"path": "jit"}, dtype=dtype)
            self.assertEqual((caught.exception.kind, caught.exception.hint), ("model", hint))
            self.assertIn(f"the model's weights lead to logits that are not finite, in {dtype}", caught.exception.message)

    def test_a_failed_compiler_fails_the_load(self):
        with mock.patch("torch.compile", side_effect=RuntimeError("no compiler found")):
            with self.assertRaises(Failed) as caught:
                load(write_folder(self), {"path": "compile"})
        self.assertEqual((caught.exception.kind, caught.exception.hint), ("internal", "--set path=loop"))
        self.assertIn("path `compile`: cannot make the decode step: RuntimeError: no compiler found", caught.exception.message)

    def test_a_load_fails_if_inductor_skips_cuda_graphs(self):
        from decode_steps import counters, require_graphs

        with require_graphs():
            pass
        with self.assertRaises(Failed) as caught, require_graphs():
            counters["inductor"]["cudagraph_skips"] += 1
        self.assertIn("made no CUDA graph for 1 parts of the decode step", caught.exception.message)
        # The graphs that an earlier load skipped do not count.
        with require_graphs():
            pass

    def test_fusion_off_gives_the_same_ids_and_is_reported(self):
        folder = write_folder(self)
        model = load(folder, {"path": "compile", "fusion": False})
        self.assertEqual(generate(model, [IDS], 12, ignore_eos=True), generate(load(folder), [IDS], 12, ignore_eos=True))
        self.assertIn("fusion off", model.facts()["libraries"]["decode"])

    @unittest.skipUnless(FULL_TESTS, "compiles for minutes; ORCHESTRATE_FULL_TESTS=1 runs it")
    def test_steps_compiled_by_inductor_give_the_tokens_of_the_plain_loop(self):
        folder = write_folder(self)
        plain_loop = load(folder, {"path": "loop"})
        for options in (
            {"path": "compile"},
            {"path": "compile", "mode": "max-autotune"},
            {"path": "jit", "compiler": "inductor"},
            {"path": "compile", "attention": "eager"},
        ):
            model = load(folder, options)
            for prompts in ([IDS], RAGGED_PROMPTS, [IDS]):
                self.assertEqual(generate(model, prompts, 8, ignore_eos=True), generate(plain_loop, prompts, 8, ignore_eos=True))
            self.assertIn(model.facts()["libraries"]["inductor cache"], ("cold", "warm", "warm in part"))

    @unittest.skipUnless(FULL_TESTS, "compiles for minutes; ORCHESTRATE_FULL_TESTS=1 runs it")
    def test_a_machine_without_a_compiler_is_reported(self):
        from torch._inductor import config

        absent = {"cpp.cxx": ("/no/such/compiler",), "force_disable_caches": True}
        with config.patch(absent), self.assertRaises(Failed) as caught:
            load(write_folder(self), {"path": "compile"})
        self.assertEqual(caught.exception.kind, "internal")
        self.assertIn("cannot make the decode step", caught.exception.message)


if __name__ == "__main__":
    unittest.main()
