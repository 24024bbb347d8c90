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
    def test_greedy_ids_are_those_of_the_library_each_with_a_timestamp(self):
        worker = loaded(self)
        it = sequence(worker.generate(max_new_tokens=6, ignore_eos=True))
        self.assertEqual((it["output_ids"], it["finish"], it["prompt_tokens"]), (expected_ids(PROMPT, 6), "length", 4))
        self.assertEqual(it["token_ns"], sorted(it["token_ns"]))
        self.assertEqual(it["cached_prompt_tokens"], 0)
        (requested,) = worker.records("requested")
        self.assertEqual((requested["requested"], requested["streaming"]), (PROMPT, True))
        self.assertEqual((requested["params"]["top_k"], requested["params"]["max_tokens"]), (1, 6))
        self.assertEqual((requested["params"]["ignore_eos"], requested["params"]["detokenize"]), (True, False))

    def test_tokens_are_streamed_with_the_times_of_the_answer(self):
        worker = loaded(self)
        worker.send(type="generate", prompt_ids=PROMPT, max_new_tokens=4, ignore_eos=True, stream=True)
        tokens = [worker.receive() for _ in range(4)]
        answer = sequence(worker.receive())
        self.assertEqual([id for token in tokens for id in token["ids"]], answer["output_ids"])
        self.assertEqual([token["ns"] for token in tokens], answer["token_ns"])

    def test_several_ids_in_one_response_are_each_pushed_once(self):
        worker = loaded(self, chunk=3)
        for count in (1, 3, 7, 8):
            answer = worker.generate(max_new_tokens=count, ignore_eos=True)
            self.assertEqual(ids(answer), expected_ids(PROMPT, count))

    def test_an_end_of_sequence_is_the_last_id_even_if_the_library_removes_it(self):
        for faults in ([], ["cuts_the_end"]):
            for ends in ([EOS], [EOS, SECOND_EOS]):
                folder = write_folder(self, {"eos_token_id": ends})
                worker = loaded(self, folder=folder, faults=faults, ends_after=2)
                it = sequence(worker.generate(max_new_tokens=9))
                self.assertEqual(it["output_ids"], [*expected_ids(PROMPT, 2), ends[-1]])
                self.assertEqual(it["finish"], "eos")
                (requested,) = worker.records("requested")
                self.assertEqual(requested["params"]["end_id"], EOS)
                self.assertEqual(requested["params"]["stop_token_ids"], ends[1:] or None)
                self.assertEqual(requested["params"]["include_stop_str_in_output"], len(ends) > 1)

    def test_an_ignored_end_of_sequence_does_not_end_it(self):
        folder = write_folder(self, {"eos_token_id": expected_ids(PROMPT, 3)})
        worker = loaded(self, folder=folder)
        it = sequence(worker.generate(max_new_tokens=5, ignore_eos=True))
        self.assertEqual((it["output_ids"], it["finish"]), (expected_ids(PROMPT, 5), "length"))
        self.assertEqual(worker.records("requested")[0]["params"]["stop_token_ids"], None)

    def test_a_model_without_an_end_of_sequence_runs_to_its_length(self):
        worker = loaded(self, folder=write_folder(self, {"eos_token_id": None}))
        self.assertEqual(ids(worker.generate(max_new_tokens=3)), expected_ids(PROMPT, 3))
        self.assertEqual(worker.records("requested")[0]["params"]["end_id"], -1)

    def test_a_request_with_too_few_or_too_many_tokens_fails(self):
        for fault, message in (("ends_early", "after 3 tokens"), ("gives_too_much", "a token for sequence 0 after it was done")):
            worker = loaded(self, faults=[fault])
            failed = worker.generate(max_new_tokens=4, ignore_eos=True)
            self.assertEqual(failed["type"], "failed")
            self.assertIn(message, failed["message"])

    def test_sampling_is_passed_on_and_is_never_greedy(self):
        worker = loaded(self)
        requested = {"temperature": 0.7, "top_k": 5, "top_p": 0.9, "seed": 11}
        first = worker.generate(max_new_tokens=8, ignore_eos=True, sampling=requested)
        self.assertEqual(ids(first), ids(worker.generate(max_new_tokens=8, ignore_eos=True, sampling=requested)))
        worker.generate(max_new_tokens=8, ignore_eos=True, sampling={"temperature": 1.5, "seed": 4})
        worker.generate(max_new_tokens=2, ignore_eos=True, sampling={"temperature": 0.0})
        sent = [record["params"] for record in worker.records("requested")]
        self.assertEqual({name: sent[0][name] for name in requested}, requested)
        # Keeping all tokens must be explicit: without values the library is greedy.
        self.assertEqual((sent[2]["top_k"], sent[2]["top_p"]), (None, 1.0))
        self.assertEqual((sent[3]["top_k"], sent[3]["temperature"]), (1, None))

    def test_a_batch_runs_at_once_and_each_sequence_has_its_own_ids(self):
        worker = loaded(self)
        prompts = [[1, 2], [3, 4, 5], [6]]
        answer = worker.request(
            type="generate", prompts_ids=prompts, max_new_tokens=4, ignore_eos=True, padding="packed"
        )
        sequences = answer["iterations"][0]["sequences"]
        self.assertEqual([it["output_ids"] for it in sequences], [expected_ids(prompt, 4) for prompt in prompts])
        failed = worker.request(type="generate", prompts_ids=prompts, max_new_tokens=4)
        self.assertEqual(failed["message"], "padding `left`: expected one of `packed`")

    def test_a_batch_beyond_max_batch_is_refused(self):
        worker = loaded(self, options={"max_batch": 2})
        failed = worker.request(type="generate", prompts_ids=[[1], [2], [3]], max_new_tokens=1)
        self.assertEqual(failed["message"], "a batch of 3: `max_batch` of this load is 2")

    def test_requests_overlap_and_each_gets_its_own_answer(self):
        worker = loaded(self, token_s=0.002)
        prompts = {f"r{index}": [index + 1, 40 + index] for index in range(5)}
        for name, prompt in prompts.items():
            worker.send(type="generate", id=name, prompt_ids=prompt, max_new_tokens=6, ignore_eos=True)
        answers = {message["id"]: message for message in (worker.receive() for _ in prompts)}
        self.assertEqual({name: ids(it) for name, it in answers.items()}, {n: expected_ids(p, 6) for n, p in prompts.items()})
        # All were submitted before the last one ended.
        self.assertEqual(len(worker.records("requested")), 5)

    def test_no_response_is_lost_with_two_requests_at_a_time(self):
        """The library wakes its reader only while the reader's loop runs, also between requests and during writes."""
        for stream in (False, True):
            with self.subTest(stream=stream):
                worker = loaded(self, token_s=0.001)
                for pair in range(60):
                    prompts = {2 * pair + index: [1 + index, 2 + pair] for index in (0, 1)}
                    for name, prompt in prompts.items():
                        worker.send(
                            type="generate", id=name, prompt_ids=prompt, max_new_tokens=8, ignore_eos=True, stream=stream
                        )
                    for _ in prompts:
                        answer = worker.receive_past("token")
                        self.assertEqual(ids(answer), expected_ids(prompts[answer["id"]], 8))
                self.assertEqual(worker.records("lost_wake"), [])

    def test_no_response_is_lost_with_one_request_at_a_time(self):
        for prompts in ([PROMPT], [PROMPT, [1, 2], [1, 3, 4], [1, 9]]):
            for stream in (False, True):
                with self.subTest(batch=len(prompts), stream=stream):
                    worker = loaded(self, token_s=0.001)
                    for _ in range(40):
                        fields = {"max_new_tokens": 8, "ignore_eos": True, "padding": "packed", "stream": stream}
                        worker.send(type="generate", prompts_ids=prompts, **fields)
                        (iteration,) = worker.receive_past("token")["iterations"]
                        found = [it["output_ids"] for it in iteration["sequences"]]
                        self.assertEqual(found, [expected_ids(prompt, 8) for prompt in prompts])
                    self.assertEqual(worker.records("lost_wake"), [])

    def test_a_cancelled_request_ends_inside_the_library_too(self):
        for overlapping in (False, True):
            worker = loaded(self, token_s=0.01)
            worker.send(type="generate", id=1, prompt_ids=PROMPT, max_new_tokens=100, ignore_eos=True)
            if overlapping:
                worker.send(type="generate", id=2, prompt_ids=[7], max_new_tokens=3, ignore_eos=True)
            worker.send(type="cancel", id=1)
            answers = [worker.receive() for _ in range(1 + overlapping)]
            answer = next(it for it in answers if it["id"] == 1)
            self.assertEqual(sequence(answer)["finish"], "cancelled")
            self.assertLess(len(ids(answer)), 100)
            self.assertEqual(ids(worker.generate(max_new_tokens=2, ignore_eos=True)), expected_ids(PROMPT, 2))

    def test_a_request_beyond_the_context_does_not_reach_the_library(self):
        worker = loaded(self)
        failed = worker.generate(prompt=[1] * 120, max_new_tokens=9)
        self.assertEqual((failed["kind"], worker.records("requested")), ("context", []))

    def test_a_request_without_cache_is_refused(self):
        failed = loaded(self).generate(max_new_tokens=1, use_cache=False)
        self.assertEqual((failed["kind"], "use_cache" in failed["message"]), ("unsupported", True))

    def test_text_without_a_tokenizer_is_refused(self):
        failed = loaded(self).request(type="generate", prompt="Hello")
        self.assertEqual((failed["kind"], failed["hint"]), ("model", "send `prompt_ids`"))

    def test_a_broken_tokenizer_fails_each_text_and_ids_still_work(self):
        folder = write_folder(self)
        (folder / "tokenizer.json").write_text("{}")
        worker = loaded(self, folder=folder)
        for id in (None, 1, 2):
            # In a Python without `tokenizers` the message names that instead.
            failed = worker.request(type="generate", prompt="Hello", id=id)
            self.assertEqual((failed["type"], failed["kind"], failed.get("id")), ("failed", "model", id))
            self.assertRegex(failed["message"], "tokenizer.json`: |`tokenizers` is not installed")
            answer = worker.generate(max_new_tokens=2, ignore_eos=True, id=id)
            self.assertEqual(ids(answer), expected_ids(PROMPT, 2))
            self.assertNotIn("text", sequence(answer))


class Scoring(unittest.TestCase):
    def test_log_probabilities_are_those_of_the_logits_at_the_previous_id(self):
        worker = loaded(self)
        first, second = PROMPT, [*PROMPT, *expected_ids(PROMPT, 3)]
        scored = worker.request(type="score", sequences=[first, second])
        self.assertEqual([len(values) for values in scored["logprobs"]], [3, 6])
        self.assertEqual(scored["logprobs"][1][:3], scored["logprobs"][0])
        # A greedy id is the likeliest: no other has a higher probability.
        for value in scored["logprobs"][1][3:]:
            self.assertTrue(-math.log(len(range(64))) <= value < 0, value)
        requested = worker.records("requested")
        self.assertEqual([record["requested"] for record in requested], [first[:-1], second[:-1]])
        self.assertTrue(all(record["params"]["return_context_logits"] for record in requested))

    def test_fewer_logits_than_positions_are_a_failure(self):
        failed = loaded(self, few_logits=True).request(type="score", sequences=[PROMPT])
        self.assertEqual(failed["message"], "TensorRT-LLM returned logits of 1 positions, not of 3")

    def test_score_of_more_ids_than_one_pass_computes_is_refused(self):
        worker = loaded(self, folder=write_folder(self, {"max_position_embeddings": 20000}))
        failed = worker.request(type="score", sequences=[[1] * 8194])
        message = "`score`: 8194 ids, but one pass computes at most 8193"
        self.assertEqual((failed["kind"], failed["message"]), ("unsupported", message))

    def test_score_without_context_logits_is_refused_with_a_hint(self):
        options = {"backend": "tensorrt", "cuda_graphs": "false", "overlap": "false", "fp8": "off"}
        failed = loaded(self, options=options).request(type="score", sequences=[PROMPT])
        self.assertEqual((failed["kind"], failed["hint"]), ("unsupported", "load with the option `context_logits = true`"))
        worker = loaded(self, options={**options, "context_logits": "true"})
        self.assertEqual(worker.request(type="score", sequences=[PROMPT])["type"], "scored")


class Failing(unittest.TestCase):
    def test_a_request_that_fails_in_the_library_is_reported_and_the_next_one_runs(self):
        worker = loaded(self, faults=["request_fails"])
        failed = worker.generate(max_new_tokens=2)
        self.assertEqual(failed["kind"], "device")
        self.assertIn("RequestError: CUDA error: an illegal memory access", failed["message"])
        self.assertEqual(worker.generate(max_new_tokens=2)["kind"], "device")

    def test_a_batch_that_failed_during_submission_is_aborted(self):
        worker = loaded(self, refused=[7, 7], token_s=0.001)
        fields = {"max_new_tokens": 100, "ignore_eos": True, "padding": "packed"}
        failed = worker.request(type="generate", prompts_ids=[PROMPT, [7, 7]], **fields)
        self.assertIn("a prompt that the library does not take", failed["message"])
        self.assertEqual(worker.records("aborted"), [{"aborted": PROMPT}])
        self.assertEqual(ids(worker.generate(max_new_tokens=2, ignore_eos=True)), expected_ids(PROMPT, 2))

    def test_a_dead_worker_process_is_a_failure(self):
        for faults in (["worker_dies"], ["worker_dies", "in_a_container"]):
            worker = loaded(self, faults=faults)
            failed = worker.generate(max_new_tokens=2)
            (record,) = worker.records("workers")
            self.assertEqual(failed["kind"], "device")
            self.assertEqual(failed["message"], f"a worker process of TensorRT-LLM (pid {record['workers'][0]}) has ended")
            # The second request does not wait again.
            self.assertEqual(worker.generate(max_new_tokens=2)["message"], failed["message"])

    def test_a_request_without_further_responses_can_be_cancelled(self):
        worker = loaded(self, faults=["never_answers"])
        worker.send(type="generate", id=1, prompt_ids=PROMPT, max_new_tokens=5, ignore_eos=True, stream=True)
        self.assertEqual([worker.receive()["type"] for _ in range(2)], ["token", "token"])
        worker.send(type="cancel", id=1)
        it = sequence(worker.receive())
        self.assertEqual((it["finish"], it["output_ids"]), ("cancelled", expected_ids(PROMPT, 2)))
        self.assertEqual(worker.records("aborted"), [{"aborted": PROMPT}])


if __name__ == "__main__":
    unittest.main()
