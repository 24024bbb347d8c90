"""Tests path `fast` against Hugging Face's classes with the same weights, and its handling of requests. The step runs
uncompiled here, which takes seconds; `test_fast_compiled.py` compiles it."""

import unittest
from unittest import mock

from support import CONFIG, EMBEDDED, load, random_weights, run, write_folder

import torch

import fast
from fast_checkpoint import ARCHITECTURES
from engine_kit import Failed, Sampler
from fast_support import CASES, FAST, hugging_face, write_case

IDS = [5, 17, 3, 60, 22, 9, 41, 8, 33, 12, 50, 2, 27, 19]


def generated_ids(model, prompts, new_tokens, **job):
    tokens = run(model, prompts, new_tokens, **job)
    return [tokens.ids(sequence) for sequence in range(len(prompts))]


@mock.patch.object(fast.CompiledStep, "_compile", lambda self, step: step)
class SameNumbers(unittest.TestCase):
    def test_every_architecture_gives_the_log_probabilities_and_the_ids_of_transformers(self):
        for name in CASES:
            with self.subTest(name):
                path = write_case(self, name)
                reference, model = hugging_face(path), load(path, FAST, dtype="f32")
                expected = torch.log_softmax(reference(IDS).double(), -1)[range(len(IDS) - 1), IDS[1:]]
                difference = (torch.tensor(model.score(IDS), dtype=torch.float64) - expected).abs().max()
                self.assertLess(difference, 1e-4)
                self.assertEqual(generated_ids(model, [IDS], 24, ignore_eos=True), [reference.greedy(IDS, 24)])

    def test_every_supported_architecture_has_a_case(self):
        self.assertEqual({case["model_type"] for case in CASES.values()}, set(ARCHITECTURES))

    def test_the_embedded_model_gives_the_ids_of_transformers(self):
        reference, model = hugging_face(EMBEDDED), load(EMBEDDED, FAST, dtype="f32")
        prompt = model.encode("Once upon a time there was a fiddle.")
        self.assertEqual(generated_ids(model, [prompt], 64, ignore_eos=True), [reference.greedy(prompt, 64)])

    def test_the_step_and_the_prefill_give_the_same_score(self):
        model = load(write_case(self, "qwen3"), FAST, dtype="f32")
        by_steps = model.score(IDS)
        with mock.patch.object(fast, "SCORED_BY_STEPS", 0):
            by_prefill = model.score(IDS)
        for found, expected in zip(by_steps, by_prefill, strict=True):
            self.assertAlmostEqual(found, expected, delta=2e-5)

    def test_two_ids_can_be_scored(self):
        model = load(write_case(self, "llama"), FAST, dtype="f32")
        self.assertEqual(len(model.score(IDS[:2])), 1)

    def test_each_sequence_of_a_batch_is_computed_as_if_it_were_alone(self):
        model = load(write_case(self, "qwen2"), FAST, dtype="f32")
        prompts = [IDS, IDS[:1], IDS[2:7]]
        separate = [generated_ids(model, [prompt], 12, ignore_eos=True)[0] for prompt in prompts]
        for padding in ("left", "right"):
            self.assertEqual(generated_ids(model, prompts, 12, ignore_eos=True, padding=padding), separate)
        self.assertEqual(generated_ids(model, [IDS, IDS], 12, ignore_eos=True), [separate[0]] * 2)

    def test_half_precision_stays_near_f32(self):
        path = write_case(self, "llama")
        single = load(path, FAST, dtype="f32").score(IDS)
        for dtype, difference in (("bf16", 0.2), ("f16", 0.02)):
            model = load(path, FAST, dtype=dtype)
            self.assertEqual([model.facts()[f"{name}_dtype"] for name in ("weights", "compute", "kv")], [dtype] * 3)
            for found, expected in zip(model.score(IDS), single, strict=True):
                self.assertAlmostEqual(found, expected, delta=difference)


@mock.patch.object(fast.CompiledStep, "_compile", lambda self, step: step)
class Requests(unittest.TestCase):
    def load(self, changes=None, options=None, **fields):
        return load(write_folder(self, changes), {**FAST, **(options or {})}, **{"dtype": "f32", **fields})

    def failure(self, kind, *args, **fields):
        with self.assertRaises(Failed) as caught:
            self.load(*args, **fields)
        self.assertEqual(caught.exception.kind, kind)
        return caught.exception.message

    def test_the_lowest_id_among_equal_logits_is_taken(self):
        model = self.load()
        model.network.head.zero_()
        self.assertEqual(generated_ids(model, [IDS], 3, ignore_eos=True), [[0, 0, 0]])
        chosen = set()
        for sign in (1.0, -1.0):
            model.network.head[[37, 61]] = sign
            chosen.update(generated_ids(model, [IDS], 1, ignore_eos=True)[0])
        # Above the others with one sign, below them with the other.
        self.assertEqual(chosen, {0, 37})

    def test_eos_ends_a_sequence_unless_it_is_ignored(self):
        path = write_folder(self)
        separate = generated_ids(load(path, FAST, dtype="f32"), [IDS], 12, ignore_eos=True)[0]
        (path / "generation_config.json").write_text(f'{{"eos_token_id": {separate[5]}}}')
        model = load(path, FAST, dtype="f32")
        self.assertEqual(generated_ids(model, [IDS], 12)[0], separate[: separate.index(separate[5]) + 1])
        self.assertEqual(generated_ids(model, [IDS], 12, ignore_eos=True)[0], separate)

    def test_a_cancelled_request_ends_with_its_current_token(self):
        from engine_kit import Job, Tokens

        model = self.load()
        job = Job([IDS], 50, ignore_eos=True)
        tokens = Tokens(job, [], 0, 0, check_cancel=lambda: setattr(tokens, "cancelled", len(tokens.ids(0)) == 4))
        model.generate(job, tokens)
        self.assertEqual(tokens.iteration()["sequences"][0]["finish"], "cancelled")
        self.assertEqual(len(tokens.ids(0)), 4)

    def test_the_whole_context_can_be_filled(self):
        model = self.load()
        self.assertEqual(model.facts()["context_tokens"], 128)
        self.assertEqual(len(generated_ids(model, [IDS], 128 - len(IDS), ignore_eos=True)[0]), 128 - len(IDS))
        self.assertEqual(len(model.score(IDS * 9)), 14 * 9 - 1)
        self.assertEqual(len(generated_ids(model, [IDS, IDS], 128 - len(IDS), ignore_eos=True)[1]), 128 - len(IDS))

    def test_sampling_uses_the_kits_random_numbers(self):
        from types import SimpleNamespace

        model = self.load()
        sampling = SimpleNamespace(temperature=1.5, top_k=20, top_p=None, seed=7)
        drawn = generated_ids(model, [IDS], 8, ignore_eos=True, sampling=sampling)[0]
        sampler, sequence = Sampler(sampling), list(IDS)
        decoder, _ = model._decoder_and_step(1, 64)
        for id in drawn:
            decoder.prefill(torch.tensor([sequence]))
            self.assertEqual(sampler.pick(decoder.logits[0].tolist()), id)
            sequence.append(id)

    def test_a_request_does_not_change_the_next_answer(self):
        model = self.load()
        separate = generated_ids(model, [IDS[:3]], 6, ignore_eos=True)
        generated_ids(model, [IDS * 4], 40, ignore_eos=True)
        generated_ids(model, [IDS * 4, IDS], 40, ignore_eos=True)
        self.assertEqual(generated_ids(model, [IDS[:3]], 6, ignore_eos=True), separate)

    def test_unsupported_features_are_refused_by_name(self):
        self.assertIn("architecture `gpt_neox`", self.failure("unsupported", {"model_type": "gpt_neox"}))
        self.assertIn("`yarn`", self.failure("unsupported", {"rope_scaling": {"rope_type": "yarn"}}))
        self.assertIn("`gelu`", self.failure("unsupported", {"hidden_act": "gelu"}))
        window = {"model_type": "mistral", "sliding_window": 50}
        self.assertIn("sliding window is 50", self.failure("unsupported", window))
        self.assertEqual(self.load(window, context_tokens=50).facts()["context_tokens"], 50)
        with self.assertRaises(Failed) as caught:
            run(self.load(), [IDS], 4, use_cache=False)
        self.assertEqual((caught.exception.kind, caught.exception.hint), ("unsupported", "--set path=loop"))

    def test_a_missing_tensor_or_one_of_another_shape_is_named(self):
        from support import CONFIG, random_weights

        missing, cut = "model.layers.1.self_attn.v_proj.weight", "model.layers.0.mlp.up_proj.weight"
        weights = random_weights(CONFIG)
        for changed in ({name: weights[name] for name in weights if name != missing}, {**weights, cut: weights[cut][:3].clone()}):
            with self.assertRaises(Failed) as caught:
                load(write_folder(self, weights=changed), FAST, dtype="f32")
            self.assertEqual(caught.exception.kind, "model")
            self.assertRegex(caught.exception.message, f"`{missing}`|`{cut}`: expected the shape \\[64, 32\\], found \\[3, 32\\]")

    def test_a_checkpoint_in_shards_or_without_the_prefix_of_names_is_read(self):
        from support import CONFIG, random_weights

        weights = random_weights(CONFIG)
        expected = load(write_folder(self, weights=weights), FAST, dtype="f32").score(IDS)
        self.assertEqual(load(write_folder(self, weights=weights, shards=3), FAST, dtype="f32").score(IDS), expected)
        without_prefix = {name.removeprefix("model."): tensor for name, tensor in weights.items()}
        self.assertEqual(load(write_folder(self, weights=without_prefix), FAST, dtype="f32").score(IDS), expected)

    def test_the_default_context_leaves_the_cache_its_share_of_memory(self):
        from types import SimpleNamespace

        shape = SimpleNamespace(context_tokens=4096, window=None, layers=2, kv_heads=4, head_dim=8)
        token_bytes = 2 * 2 * 4 * 8 * 4

        def context(requested, tokens):
            return fast.context_in_effect(requested, shape, torch.float32, None, free_on=lambda _: token_bytes * tokens)

        self.assertEqual(context(None, 8192), 4096)
        self.assertEqual(context(None, 8191), 2048)
        self.assertEqual(context(4096, 10), 4096)


class Graph:
    """A stand-in for a captured CUDA graph: it can run again, and reads as many tokens as at its capture."""

    def __init__(self, run):
        self.replay = run


class Captured(fast.GraphsByLength):
    lengths = []

    def _capture(self, length):
        self.lengths.append(length)
        with self._decoder.restore_state():
            self._run(length)
        return Graph(lambda: self._run(length))


class IdTransfer:
    """A stand-in for pinned memory and events: an id can be read at once, and every action is recorded."""

    done = []

    def __init__(self, sequences, device):
        self._ids = {}

    def send(self, index, ids):
        self._ids[index] = ids.tolist()
        self.done.append(f"send {index}")

    def receive(self, index):
        self.done.append(f"receive {index}")
        return self._ids[index]

    def wait(self):
        self.done.append("wait")


@mock.patch.object(fast.CompiledStep, "_compile", lambda self, step: step)
class OnCuda(unittest.TestCase):
    """Tests path `fast` around its graphs, without a graph or a device."""

    def load(self, path):
        model = load(path, {**FAST, "cache_tokens": 32}, dtype="f32")
        for name, stand_in in (("GraphsByLength", Captured), ("IdTransfer", IdTransfer)):
            patch = mock.patch.object(fast, name, stand_in)
            patch.start()
            self.addCleanup(patch.stop)
        Captured.lengths.clear()
        IdTransfer.done.clear()
        model._decoders.clear()
        model._uses_graphs = True
        model.prepare()
        return model

    def test_masked_lengths_give_the_ids_of_exact_ones_one_by_one_and_in_a_batch(self):
        path = write_case(self, "qwen3")
        exact, model = load(path, FAST, dtype="f32"), self.load(path)
        self.assertEqual(Captured.lengths, [32, 64, 128])
        expected = generated_ids(exact, [IDS], 100, ignore_eos=True)
        self.assertEqual(generated_ids(model, [IDS], 100, ignore_eos=True), expected)
        # The longer request leaves nothing that the shorter one could read.
        found, expected = (generated_ids(tested, [IDS[:2]], 20, ignore_eos=True) for tested in (model, exact))
        self.assertEqual(found, expected)
        self.assertEqual(Captured.lengths, [32, 64, 128])
        for found, expected in zip(model.score(IDS), exact.score(IDS), strict=True):
            self.assertAlmostEqual(found, expected, delta=2e-5)
        prompts = [IDS, IDS[:3]]
        for padding in ("left", "right"):
            expected = generated_ids(exact, prompts, 40, ignore_eos=True, padding=padding)
            self.assertEqual(generated_ids(model, prompts, 40, ignore_eos=True, padding=padding), expected)

    def test_the_next_step_starts_before_an_id_is_read_and_none_starts_after_the_last_token(self):
        model = self.load(write_case(self, "llama"))
        generated_ids(model, [IDS], 3, ignore_eos=True)
        self.assertEqual(IdTransfer.done, ["send 0", "send 1", "receive 0", "send 2", "receive 1", "receive 2", "wait"])

    def test_a_request_with_an_early_end_waits_for_the_running_step(self):
        model = self.load(write_case(self, "llama"))
        (ids,) = generated_ids(model, [IDS], 8, ignore_eos=True)
        IdTransfer.done.clear()
        model.loaded.folder.eos_ids = [ids[0]]
        self.assertEqual(generated_ids(model, [IDS], 8), [ids[:1]])
        self.assertEqual(IdTransfer.done, ["send 0", "send 1", "receive 0", "wait"])


class Compiling(unittest.TestCase):
    def failure(self, **patched):
        with self.assertRaises(Failed) as caught, mock.patch.object(torch, "compile", **patched):
            load(write_folder(self), FAST, dtype="f32")
        return caught.exception

    def test_a_step_that_cannot_be_compiled_fails_the_load(self):
        def compile(step, **options):
            def invalid_span(span):
                raise RuntimeError("\nno register left\nmore about it")

            return invalid_span

        failed = self.failure(new=compile)
        self.assertEqual(failed.kind, "internal")
        self.assertIn("cannot compile the step: RuntimeError: no register left", failed.message)
        self.assertEqual(failed.hint, "--set path=loop")

    def test_a_wrongly_compiled_step_fails_the_load(self):
        def compile(step, **options):
            def wrong_span(span):
                step(span)
                step.__self__.logits.mul_(-1.0)

            return wrong_span

        self.assertIn("path `fast`: the decode step computes something else", self.failure(new=compile).message)

    def test_a_step_with_a_constant_from_its_first_run_fails_the_load(self):
        for part in ("ids", "positions", "column"):

            def compile(step, **options):
                state = getattr(step.__self__, part)
                first = []

                def frozen(span):
                    first.append(state.clone())
                    state.copy_(first[0])
                    step(span)

                return frozen

            self.assertIn("computes something else", self.failure(new=compile).message, part)

    def test_logits_that_are_not_finite_are_the_models_fault(self):
        weights = random_weights(CONFIG)
        weights["lm_head.weight"][3] = float("inf")
        with self.assertRaises(Failed) as caught, mock.patch.object(torch, "compile", lambda step, **options: step):
            load(write_folder(self, weights=weights), FAST, dtype="f32")
        self.assertEqual((caught.exception.kind, caught.exception.hint), ("model", None))

    def test_a_machine_without_a_compiler_is_reported(self):
        with mock.patch.dict("os.environ", {"PATH": "", "CXX": ""}), self.assertRaises(Failed) as caught:
            load(write_folder(self), FAST, dtype="f32")
        self.assertEqual((caught.exception.kind, caught.exception.hint), ("unavailable", "apt-get install g++"))
        self.assertIn("`g++`", caught.exception.message)


if __name__ == "__main__":
    unittest.main()
