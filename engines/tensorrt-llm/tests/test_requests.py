"""Tests requests from a line to its answer: streamed ids, ends, batches, overlapping requests, scores, and cancels."""

import math
import unittest

from support import (
    EOS,
    PROMPT,
    SECOND_EOS,
    expected_ids,
    ids,
    loaded,
    sequence,
    write_folder,
)


class Generating(unittest.TestCase):
    def test_greedy_ids_are_those_of_the_library_and_each_is_stamped(self):
        worker = loaded(self)
        it = sequence(worker.generate(max_new_tokens=6, ignore_eos=True))
        self.assertEqual((it["output_ids"], it["finish"], it["prompt_tokens"]), (expected_ids(PROMPT, 6), "length", 4))
        self.assertEqual(it["token_ns"], sorted(it["token_ns"]))
        self.assertEqual(it["cached_prompt_tokens"], 0)
        (asked,) = worker.noted("asked")
        self.assertEqual((asked["asked"], asked["streaming"]), (PROMPT, True))
        self.assertEqual((asked["params"]["top_k"], asked["params"]["max_tokens"]), (1, 6))
        self.assertEqual((asked["params"]["ignore_eos"], asked["params"]["detokenize"]), (True, False))

    def test_tokens_are_streamed_with_the_times_of_the_answer(self):
        worker = loaded(self)
        worker.say(type="generate", prompt_ids=PROMPT, max_new_tokens=4, ignore_eos=True, stream=True)
        tokens = [worker.hear() for _ in range(4)]
        answer = sequence(worker.hear())
        self.assertEqual([id for token in tokens for id in token["ids"]], answer["output_ids"])
        self.assertEqual([token["ns"] for token in tokens], answer["token_ns"])

    def test_several_ids_in_one_response_are_all_taken_and_none_twice(self):
        worker = loaded(self, chunk=3)
        for count in (1, 3, 7, 8):
            answer = worker.generate(max_new_tokens=count, ignore_eos=True)
            self.assertEqual(ids(answer), expected_ids(PROMPT, count))

    def test_an_end_of_sequence_is_the_last_id_whoever_cuts_it_off(self):
        for faults in ([], ["cuts_the_end"]):
            for ends in ([EOS], [EOS, SECOND_EOS]):
                folder = write_folder(self, {"eos_token_id": ends})
                worker = loaded(self, folder=folder, faults=faults, ends_after=2)
                it = sequence(worker.generate(max_new_tokens=9))
                self.assertEqual(it["output_ids"], [*expected_ids(PROMPT, 2), ends[-1]])
                self.assertEqual(it["finish"], "eos")
                (asked,) = worker.noted("asked")
                self.assertEqual(asked["params"]["end_id"], EOS)
                self.assertEqual(asked["params"]["stop_token_ids"], ends[1:] or None)
                self.assertEqual(asked["params"]["include_stop_str_in_output"], len(ends) > 1)

    def test_an_ignored_end_of_sequence_is_an_id_like_any_other(self):
        folder = write_folder(self, {"eos_token_id": expected_ids(PROMPT, 3)})
        worker = loaded(self, folder=folder)
        it = sequence(worker.generate(max_new_tokens=5, ignore_eos=True))
        self.assertEqual((it["output_ids"], it["finish"]), (expected_ids(PROMPT, 5), "length"))
        self.assertEqual(worker.noted("asked")[0]["params"]["stop_token_ids"], None)

    def test_a_model_without_an_end_of_sequence_runs_to_its_length(self):
        worker = loaded(self, folder=write_folder(self, {"eos_token_id": None}))
        self.assertEqual(ids(worker.generate(max_new_tokens=3)), expected_ids(PROMPT, 3))
        self.assertEqual(worker.noted("asked")[0]["params"]["end_id"], -1)

    def test_a_request_that_ends_too_early_or_too_late_is_a_failure_and_no_result(self):
        for fault, words in (("ends_early", "after 3 tokens"), ("gives_too_much", "a token for sequence 0 after it was done")):
            worker = loaded(self, faults=[fault])
            failed = worker.generate(max_new_tokens=4, ignore_eos=True)
            self.assertEqual(failed["type"], "failed")
            self.assertIn(words, failed["message"])

    def test_sampling_is_passed_on_and_never_mistaken_for_greedy(self):
        worker = loaded(self)
        asked = {"temperature": 0.7, "top_k": 5, "top_p": 0.9, "seed": 11}
        first = worker.generate(max_new_tokens=8, ignore_eos=True, sampling=asked)
        self.assertEqual(ids(first), ids(worker.generate(max_new_tokens=8, ignore_eos=True, sampling=asked)))
        worker.generate(max_new_tokens=8, ignore_eos=True, sampling={"temperature": 1.5, "seed": 4})
        worker.generate(max_new_tokens=2, ignore_eos=True, sampling={"temperature": 0.0})
        said = [note["params"] for note in worker.noted("asked")]
        self.assertEqual({name: said[0][name] for name in asked}, asked)
        # Keeping all tokens must be explicit: without values the library is greedy.
        self.assertEqual((said[2]["top_k"], said[2]["top_p"]), (None, 1.0))
        self.assertEqual((said[3]["top_k"], said[3]["temperature"]), (1, None))

    def test_a_batch_runs_at_once_and_each_sequence_has_its_own_ids(self):
        worker = loaded(self)
        prompts = [[1, 2], [3, 4, 5], [6]]
        answer = worker.ask(
            type="generate", prompts_ids=prompts, max_new_tokens=4, ignore_eos=True, padding="packed"
        )
        sequences = answer["iterations"][0]["sequences"]
        self.assertEqual([it["output_ids"] for it in sequences], [expected_ids(prompt, 4) for prompt in prompts])
        failed = worker.ask(type="generate", prompts_ids=prompts, max_new_tokens=4)
        self.assertEqual(failed["message"], "padding `left`: offered are `packed`")

    def test_a_batch_beyond_what_the_load_allows_is_refused(self):
        worker = loaded(self, options={"max_batch": 2})
        failed = worker.ask(type="generate", prompts_ids=[[1], [2], [3]], max_new_tokens=1)
        self.assertEqual(failed["message"], "a batch of 3: this load was given `max_batch` 2")

    def test_requests_overlap_and_each_gets_its_own_answer(self):
        worker = loaded(self, token_s=0.002)
        prompts = {f"r{index}": [index + 1, 40 + index] for index in range(5)}
        for name, prompt in prompts.items():
            worker.say(type="generate", id=name, prompt_ids=prompt, max_new_tokens=6, ignore_eos=True)
        answers = {message["id"]: message for message in (worker.hear() for _ in prompts)}
        self.assertEqual({name: ids(it) for name, it in answers.items()}, {n: expected_ids(p, 6) for n, p in prompts.items()})
        # All were submitted before the last one ended.
        self.assertEqual(len(worker.noted("asked")), 5)

    def test_of_many_requests_two_at_a_time_none_is_lost(self):
        """The library wakes its reader only while the reader's loop runs, also between requests and during writes."""
        for stream in (False, True):
            with self.subTest(stream=stream):
                worker = loaded(self, token_s=0.001)
                for pair in range(60):
                    prompts = {2 * pair + half: [1 + half, 2 + pair] for half in (0, 1)}
                    for name, prompt in prompts.items():
                        worker.say(
                            type="generate", id=name, prompt_ids=prompt, max_new_tokens=8, ignore_eos=True, stream=stream
                        )
                    for _ in prompts:
                        answer = worker.hear_past("token")
                        self.assertEqual(ids(answer), expected_ids(prompts[answer["id"]], 8))
                self.assertEqual(worker.noted("lost_wake"), [])

    def test_of_many_requests_one_after_the_other_none_is_lost(self):
        for prompts in ([PROMPT], [PROMPT, [1, 2], [1, 3, 4], [1, 9]]):
            for stream in (False, True):
                with self.subTest(batch=len(prompts), stream=stream):
                    worker = loaded(self, token_s=0.001)
                    for _ in range(40):
                        asked = {"max_new_tokens": 8, "ignore_eos": True, "padding": "packed", "stream": stream}
                        worker.say(type="generate", prompts_ids=prompts, **asked)
                        (iteration,) = worker.hear_past("token")["iterations"]
                        found = [it["output_ids"] for it in iteration["sequences"]]
                        self.assertEqual(found, [expected_ids(prompt, 8) for prompt in prompts])
                    self.assertEqual(worker.noted("lost_wake"), [])

    def test_a_cancelled_request_ends_inside_the_library_too(self):
        for overlapping in (False, True):
            worker = loaded(self, token_s=0.01)
            worker.say(type="generate", id=1, prompt_ids=PROMPT, max_new_tokens=100, ignore_eos=True)
            if overlapping:
                worker.say(type="generate", id=2, prompt_ids=[7], max_new_tokens=3, ignore_eos=True)
            worker.say(type="cancel", id=1)
            answers = [worker.hear() for _ in range(1 + overlapping)]
            answer = next(it for it in answers if it["id"] == 1)
            self.assertEqual(sequence(answer)["finish"], "cancelled")
            self.assertLess(len(ids(answer)), 100)
            self.assertEqual(ids(worker.generate(max_new_tokens=2, ignore_eos=True)), expected_ids(PROMPT, 2))

    def test_a_request_beyond_the_context_is_refused_before_the_library_sees_it(self):
        worker = loaded(self)
        failed = worker.generate(prompt=[1] * 120, max_new_tokens=9)
        self.assertEqual((failed["kind"], worker.noted("asked")), ("context", []))

    def test_without_its_cache_nothing_is_computed(self):
        failed = loaded(self).generate(max_new_tokens=1, use_cache=False)
        self.assertEqual((failed["kind"], "use_cache" in failed["message"]), ("unsupported", True))

    def test_text_needs_a_tokenizer_and_says_so(self):
        failed = loaded(self).ask(type="generate", prompt="Hello")
        self.assertEqual((failed["kind"], failed["hint"]), ("model", "send `prompt_ids`"))

    def test_a_broken_tokenizer_is_no_matter_of_ids_and_fails_every_text(self):
        folder = write_folder(self)
        (folder / "tokenizer.json").write_text("{}")
        worker = loaded(self, folder=folder)
        for id in (None, 1, 2):
            # In a Python without `tokenizers` the message names that instead.
            failed = worker.ask(type="generate", prompt="Hello", id=id)
            self.assertEqual((failed["type"], failed["kind"], failed.get("id")), ("failed", "model", id))
            self.assertRegex(failed["message"], "tokenizer.json`: |`tokenizers` is not installed")
            answer = worker.generate(max_new_tokens=2, ignore_eos=True, id=id)
            self.assertEqual(ids(answer), expected_ids(PROMPT, 2))
            self.assertNotIn("text", sequence(answer))


class Scoring(unittest.TestCase):
    def test_log_probabilities_are_those_of_the_logits_at_the_id_before(self):
        worker = loaded(self)
        first, second = PROMPT, [*PROMPT, *expected_ids(PROMPT, 3)]
        scored = worker.ask(type="score", sequences=[first, second])
        self.assertEqual([len(values) for values in scored["logprobs"]], [3, 6])
        self.assertEqual(scored["logprobs"][1][:3], scored["logprobs"][0])
        # A greedy id is the likeliest: no other has a higher probability.
        for value in scored["logprobs"][1][3:]:
            self.assertTrue(-math.log(len(range(64))) <= value < 0, value)
        asked = worker.noted("asked")
        self.assertEqual([note["asked"] for note in asked], [first[:-1], second[:-1]])
        self.assertTrue(all(note["params"]["return_context_logits"] for note in asked))

    def test_fewer_logits_than_positions_are_a_failure(self):
        failed = loaded(self, few_logits=True).ask(type="score", sequences=[PROMPT])
        self.assertEqual(failed["message"], "TensorRT-LLM gave logits of 1 positions, not of 3")

    def test_an_engine_that_was_built_without_context_logits_says_how_to_have_them(self):
        options = {"backend": "tensorrt", "cuda_graphs": "false", "overlap": "false", "fp8": "off"}
        failed = loaded(self, options=options).ask(type="score", sequences=[PROMPT])
        self.assertEqual((failed["kind"], failed["hint"]), ("unsupported", "load with the option `context_logits = true`"))
        worker = loaded(self, options={**options, "context_logits": "true"})
        self.assertEqual(worker.ask(type="score", sequences=[PROMPT])["type"], "scored")


class Failing(unittest.TestCase):
    def test_what_the_library_says_of_a_request_is_told_and_the_next_one_runs(self):
        worker = loaded(self, faults=["request_fails"])
        failed = worker.generate(max_new_tokens=2)
        self.assertEqual(failed["kind"], "device")
        self.assertIn("RequestError: CUDA error: an illegal memory access", failed["message"])
        self.assertEqual(worker.generate(max_new_tokens=2)["kind"], "device")

    def test_a_batch_that_failed_half_begun_leaves_nothing_behind(self):
        worker = loaded(self, refused=[7, 7], token_s=0.001)
        asked = {"max_new_tokens": 100, "ignore_eos": True, "padding": "packed"}
        failed = worker.ask(type="generate", prompts_ids=[PROMPT, [7, 7]], **asked)
        self.assertIn("a prompt that the library does not take", failed["message"])
        self.assertEqual(worker.noted("aborted"), [{"aborted": PROMPT}])
        self.assertEqual(ids(worker.generate(max_new_tokens=2, ignore_eos=True)), expected_ids(PROMPT, 2))

    def test_a_worker_process_that_died_is_a_failure_and_no_hang(self):
        for faults in (["worker_dies"], ["worker_dies", "in_a_container"]):
            worker = loaded(self, faults=faults)
            failed = worker.generate(max_new_tokens=2)
            (note,) = worker.noted("workers")
            self.assertEqual(failed["kind"], "device")
            self.assertEqual(failed["message"], f"a worker process of TensorRT-LLM (pid {note['workers'][0]}) has ended")
            # The second request does not wait again.
            self.assertEqual(worker.generate(max_new_tokens=2)["message"], failed["message"])

    def test_a_request_that_says_nothing_more_can_be_cancelled(self):
        worker = loaded(self, faults=["never_answers"])
        worker.say(type="generate", id=1, prompt_ids=PROMPT, max_new_tokens=5, ignore_eos=True, stream=True)
        self.assertEqual([worker.hear()["type"] for _ in range(2)], ["token", "token"])
        worker.say(type="cancel", id=1)
        it = sequence(worker.hear())
        self.assertEqual((it["finish"], it["output_ids"]), ("cancelled", expected_ids(PROMPT, 2)))
        self.assertEqual(worker.noted("aborted"), [{"aborted": PROMPT}])


if __name__ == "__main__":
    unittest.main()
