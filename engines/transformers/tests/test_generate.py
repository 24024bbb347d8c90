"""Tests requests on the paths `generate`, `loop` and `jit`: all give the same tokens."""

import unittest
from types import SimpleNamespace

from support import CONFIG, load, random_weights, write_folder, write_network

from engine_tests import generate
import torch

from engine_kit import Failed, Job, Sampler, Tokens

IDS = [0, 17, 42, 9]
RAGGED_PROMPTS = [[0, 17, 42, 9, 3, 8], [0, 5], [7]]
PATHS = ("generate", "loop", "jit")


class Requests(unittest.TestCase):
    def models(self, **fields):
        folder = write_folder(self, **fields)
        return [load(folder, {"path": path}) for path in PATHS]

    def greedy_ids(self, model, prompt, new_tokens):
        """Computes greedy ids by a forward pass over the whole sequence for every token."""
        ids = list(prompt)
        with torch.no_grad():
            for _ in range(new_tokens):
                ids.append(int(model.network(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
        return ids[len(prompt) :]

    def test_every_path_gives_the_ids_of_plain_forward_passes(self):
        for model in self.models():
            expected = self.greedy_ids(model, IDS, 12)
            self.assertEqual(generate(model, [IDS], 12, ignore_eos=True), [expected])
            self.assertEqual(generate(model, [IDS], 12, ignore_eos=True, use_cache=False), [expected])

    def test_weights_that_are_not_finite_fail_the_request(self):
        for path in ("generate", "loop"):
            dtype, hint = ("f32", None) if path == "loop" else ("bf16", "--dtype f32")
            model = load(write_folder(self), {"path": path}, dtype=dtype)
            expected, norm = generate(model, [IDS], 3, ignore_eos=True), model.network.model.norm.weight
            saved = norm.clone()
            for value in (float("nan"), float("inf")):
                norm[5] = value
                for prompts in ([IDS], RAGGED_PROMPTS):
                    with self.assertRaises(Failed) as caught:
                        generate(model, prompts, 3)
                    problem = f"its weights lead to logits that are not finite, in {dtype}"
                    self.assertEqual((caught.exception.kind, caught.exception.hint), ("model", hint))
                    self.assertEqual(caught.exception.message, f"model `{model.loaded.folder.name}`: {problem}")
            norm.copy_(saved)
            self.assertEqual(generate(model, [IDS], 3, ignore_eos=True), expected)
            self.assertFalse(model.network._forward_hooks)

    def test_a_request_for_one_token_gets_one_token(self):
        for model in self.models():
            self.assertEqual(generate(model, [IDS], 1, ignore_eos=True), [self.greedy_ids(model, IDS, 1)])

    def test_prompt_lookup_gives_the_same_ids_in_fewer_passes_and_counts_its_drafts(self):
        model = load(write_folder(self), {"path": "generate"})
        # A prompt that repeats itself always has a draft.
        prompt, passes = IDS * 6, []
        hook = model.network.register_forward_hook(lambda *_: passes.append(1))
        self.addCleanup(hook.remove)

        def request(**fields):
            job = Job([prompt], 40, ignore_eos=True, **fields)
            passes.clear()
            tokens = Tokens(job, [], 0, 0)
            model.generate(job, tokens)
            (sequence,) = tokens.iteration()["sequences"]
            return sequence["output_ids"], len(passes), sequence.get("drafted_tokens"), sequence.get("accepted_tokens")

        plain_ids, plain_passes, *no_counts = request()
        ids, drafting_passes, drafted, accepted = request(speculation="prompt_lookup")
        self.assertEqual((ids, plain_passes, no_counts), (plain_ids, 40, [None, None]))
        # The last pass may have only accepted drafts, without a token after them.
        self.assertIn(drafting_passes, (40 - accepted, 41 - accepted))
        self.assertTrue(drafted >= accepted and drafted > 0, (drafted, accepted))
        # Without a cache nothing is drafted.
        self.assertEqual(request(speculation="prompt_lookup", use_cache=False), (plain_ids, 40, 0, 0))
        self.assertFalse(model.network._forward_pre_hooks)

    def test_drafts_are_refused_in_a_batch_and_on_other_paths(self):
        for path, prompts, message in [("loop", [IDS], "path `loop`"), ("generate", [IDS, IDS], "in a batch")]:
            model = load(write_folder(self), {"path": path})
            with self.assertRaises(Failed) as caught:
                generate(model, prompts, 4, speculation="prompt_lookup")
            self.assertEqual(caught.exception.kind, "unsupported")
            self.assertIn(message, caught.exception.message)

    def test_a_sequence_gets_the_same_ids_in_a_batch_and_alone_with_either_padding(self):
        for model in self.models():
            separate_ids = [generate(model, [prompt], 8, ignore_eos=True)[0] for prompt in RAGGED_PROMPTS]
            for padding in ("left", "right"):
                for use_cache in (True, False):
                    fields = dict(ignore_eos=True, padding=padding, use_cache=use_cache)
                    self.assertEqual(generate(model, RAGGED_PROMPTS, 8, **fields), separate_ids, (type(model), fields))

    def test_pads_inside_a_sliding_window_are_refused_and_other_batches_give_the_ids_of_a_request_alone(self):
        window = {"sliding_window": 12, "rope_theta": 100.0, "pad_token_id": 0}
        switch = {"use_sliding_window": True, "max_window_layers": 1}
        architectures = {"mistral": {}, "qwen2": switch, "qwen3": {**switch, "head_dim": 8}, "phi3": {}}
        for architecture, fields in architectures.items():
            folder = write_network(self, {**CONFIG, "model_type": architecture, **window, **fields})
            for path in ("generate", "loop"):
                model = load(folder, {"path": path})
                separate_ids = [generate(model, [prompt], 16, ignore_eos=True)[0] for prompt in RAGGED_PROMPTS]
                self.assertEqual(generate(model, RAGGED_PROMPTS, 16, ignore_eos=True, padding="left"), separate_ids, architecture)
                for use_cache in (True, False):
                    with self.assertRaises(Failed) as caught:
                        generate(model, RAGGED_PROMPTS, 16, ignore_eos=True, padding="right", use_cache=use_cache)
                    self.assertEqual((caught.exception.kind, caught.exception.hint), ("unsupported", 'send `"padding": "left"`'))
                    self.assertIn("pads would take places of tokens in its sliding window of 12", caught.exception.message)
                # Six columns and seven new tokens, of which the last is no input, fit into the window.
                fields = dict(ignore_eos=True, padding="right")
                self.assertEqual(generate(model, RAGGED_PROMPTS, 7, **fields), [ids[:7] for ids in separate_ids], architecture)
                # Prompts of one length have no pads.
                self.assertEqual(generate(model, [IDS, IDS], 16, **fields), generate(model, [IDS], 16, ignore_eos=True) * 2)

    def test_earlier_requests_do_not_change_an_answer(self):
        for model in self.models():
            first = generate(model, [IDS], 8, ignore_eos=True)
            generate(model, [[9, 9, 9, 9, 9, 9, 9]], 30, ignore_eos=True)
            generate(model, RAGGED_PROMPTS, 4, ignore_eos=True)
            self.assertEqual(generate(model, [IDS], 8, ignore_eos=True), first)

    def test_the_lowest_id_among_equal_logits_is_taken(self):
        weights = random_weights(CONFIG)
        weights["lm_head.weight"][5] = weights["lm_head.weight"][9]
        for model in self.models(weights=weights):
            with torch.no_grad():
                logits = model.network(input_ids=torch.tensor([IDS])).logits
            self.assertTrue(torch.equal(logits[..., 5], logits[..., 9]))
            chosen = [id for prompt in range(60) for id in generate(model, [[prompt]], 6, ignore_eos=True)[0]]
            self.assertNotIn(9, chosen)

    def test_eos_ends_a_sequence_unless_the_request_ignores_it(self):
        folder = write_folder(self)
        ids = generate(load(folder), [IDS], 12, ignore_eos=True)[0]
        eos = ids[4]
        folder = write_folder(self, {"eos_token_id": eos})
        for path in PATHS:
            model = load(folder, {"path": path})
            self.assertEqual(generate(model, [IDS], 12), [ids[: ids.index(eos) + 1]])
            self.assertEqual(generate(model, [IDS], 12, ignore_eos=True), [ids])
            # The other sequences of a batch continue.
            separate_ids = [generate(model, [prompt], 12)[0] for prompt in (IDS, [7])]
            self.assertEqual(generate(model, [IDS, [7]], 12), separate_ids)

    def test_the_generation_config_of_the_folder_does_not_apply_to_a_request(self):
        expected = generate(load(write_folder(self)), [IDS], 12, ignore_eos=True)
        settings = {
            "do_sample": True,
            "temperature": 5.0,
            "top_k": 3,
            "repetition_penalty": 9.0,
            "no_repeat_ngram_size": 1,
            "suppress_tokens": expected[0],
            "max_length": 5,
            "min_new_tokens": 30,
            "num_beams": 4,
            "use_cache": False,
        }
        for model in self.models(generation_config=settings):
            self.assertEqual(generate(model, [IDS], 12, ignore_eos=True), expected)

    def test_sampled_ids_equal_the_ids_of_the_kits_sampler(self):
        sampling = SimpleNamespace(temperature=1.3, top_k=20, top_p=0.9, seed=7)
        for model in self.models():
            sampler, ids = Sampler(sampling), list(IDS)
            with torch.no_grad():
                for _ in range(8):
                    logits = model.network(input_ids=torch.tensor([ids])).logits[0, -1]
                    ids.append(sampler.pick(logits.tolist()))
            self.assertEqual(generate(model, [IDS], 8, ignore_eos=True, sampling=sampling), [ids[4:]])
            first, second = generate(model, [IDS, IDS], 8, ignore_eos=True, sampling=sampling)
            self.assertEqual(first, ids[4:])
            self.assertNotEqual(second, first, "every sequence has its own random numbers")

    def test_a_cancelled_request_ends_at_the_next_token(self):
        for model in self.models():
            job = Job([IDS, [7]], 50, ignore_eos=True)
            checks = []

            def cancel_at_sixth_check():
                checks.append(None)
                tokens.cancelled = len(checks) >= 6

            tokens = Tokens(job, [], 0, 0, check_cancel=cancel_at_sixth_check)
            model.generate(job, tokens)
            sequences = tokens.iteration()["sequences"]
            self.assertEqual([sequence["finish"] for sequence in sequences], ["cancelled"] * 2)
            # The sixth token is the third of the second sequence. The first sequence ends at its next token.
            self.assertEqual([len(sequence["output_ids"]) for sequence in sequences], [4, 3])
            self.assertEqual(len(generate(model, [IDS], 5, ignore_eos=True)[0]), 5)

    def test_tokens_are_pushed_one_by_one_between_forward_passes(self):
        for model in self.models():
            calls = []
            model.network.register_forward_pre_hook(lambda *_: calls.append("forward"))
            job = Job([IDS], 5, ignore_eos=True)
            tokens = Tokens(job, [], 0, 0, check_cancel=lambda: calls.append("token"))
            model.generate(job, tokens)
            if "forward" in calls[1:]:
                # A traced step calls no hooks, so path `jit` records only the prompt's forward pass, and is skipped.
                self.assertEqual(calls, ["forward", "token"] * 5)

    def test_scores_are_the_log_probabilities_of_one_forward_pass(self):
        for model in self.models():
            ids = [id % 64 for id in range(3, 120)]
            with torch.no_grad():
                rows = torch.log_softmax(model.network(input_ids=torch.tensor([ids])).logits[0].double(), -1)
            expected = [float(rows[index, id]) for index, id in enumerate(ids[1:])]
            scores = model.score(ids)
            self.assertEqual(len(scores), len(ids) - 1)
            self.assertLess(max(abs(left - right) for left, right in zip(scores, expected)), 1e-6)

    def test_an_out_of_memory_error_names_the_requested_bytes(self):
        model = load(write_folder(self), {"path": "loop"})
        model.network.register_forward_pre_hook(lambda *_: torch.empty(1 << 50))
        with self.assertRaises(Failed) as caught:
            generate(model, [IDS], 2)
        self.assertEqual(caught.exception.kind, "out_of_memory")
        self.assertIn("generate (1 x 4 tokens and 2 new ones): requested 4503599.63 GB on cpu", caught.exception.message)


class Attention(unittest.TestCase):
    def test_every_kind_of_attention_gives_the_same_ids(self):
        folder = write_folder(self)
        expected = generate(load(folder), RAGGED_PROMPTS, 8, ignore_eos=True)
        for options in ({"attention": "eager"}, {"attention": "flash"}, {"attention": "eager", "path": "jit"}):
            model = load(folder, options)
            self.assertEqual(generate(model, RAGGED_PROMPTS, 8, ignore_eos=True), expected, options)
            self.assertEqual(model.facts()["libraries"]["attention"], options["attention"])

    def test_an_unsupported_flash_kernel_fails_without_a_fallback(self):
        model = load(write_folder(self), {"attention": "flash", "path": "loop"})

        def refuse(*_):
            raise RuntimeError("No available kernel. Aborting execution.")

        model.network.register_forward_pre_hook(refuse)
        for request in (lambda: generate(model, [IDS], 2), lambda: model.score(IDS)):
            with self.assertRaises(Failed) as caught:
                request()
            self.assertEqual((caught.exception.kind, caught.exception.hint), ("unsupported", "--set attention=sdpa"))

    def test_narrow_dtypes_run_on_every_path(self):
        folder = write_folder(self)
        for path in PATHS:
            for dtype in ("bf16", "f16"):
                model = load(folder, {"path": path}, dtype=dtype)
                facts = model.facts()
                self.assertEqual([facts[name] for name in ("weights_dtype", "compute_dtype", "kv_dtype")], [dtype] * 3)
                self.assertEqual(len(generate(model, [IDS], 6, ignore_eos=True)[0]), 6)
                self.assertEqual(facts["weights_bytes"], 2 * facts["parameters"])


if __name__ == "__main__":
    unittest.main()
