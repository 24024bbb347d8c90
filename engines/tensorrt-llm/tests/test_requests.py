"""Tests requests: streamed ids, ends of sequences, batches, overlapping requests, scores, cancels and failures."""

import math
import unittest

from support import EOS, PROMPT, SECOND_EOS, expected_ids, ids, loaded_engine, single_sequence, write_folder


class Generation(unittest.TestCase):
    def test_each_greedy_id_comes_from_the_library_and_has_a_timestamp(self):
        engine = loaded_engine(self)
        answer = single_sequence(engine.generate(max_new_tokens=6, ignore_eos=True))
        self.assertEqual((answer["output_ids"], answer["finish"], answer["prompt_tokens"]), (expected_ids(PROMPT, 6), "length", 4))
        self.assertEqual(answer["token_ns"], sorted(answer["token_ns"]))
        self.assertEqual(answer["cached_prompt_tokens"], 0)
        (request,) = engine.records("prompt_ids")
        self.assertEqual((request["prompt_ids"], request["streaming"]), (PROMPT, True))
        self.assertEqual((request["params"]["top_k"], request["params"]["max_tokens"]), (1, 6))
        self.assertEqual((request["params"]["ignore_eos"], request["params"]["detokenize"]), (True, False))

    def test_streamed_tokens_have_the_ids_and_timestamps_of_the_answer(self):
        engine = loaded_engine(self)
        engine.send(type="generate", prompt_ids=PROMPT, max_new_tokens=4, ignore_eos=True, stream=True)
        tokens = [engine.receive() for _ in range(4)]
        answer = single_sequence(engine.receive())
        self.assertEqual([id for token in tokens for id in token["ids"]], answer["output_ids"])
        self.assertEqual([token["ns"] for token in tokens], answer["token_ns"])

    def test_each_of_several_ids_in_one_response_is_in_the_answer_once(self):
        engine = loaded_engine(self, chunk=3)
        for count in (1, 3, 7, 8):
            answer = engine.generate(max_new_tokens=count, ignore_eos=True)
            self.assertEqual(ids(answer), expected_ids(PROMPT, count))

    def test_the_eos_id_is_the_last_id_even_if_the_library_removes_it(self):
        for faults in ([], ["removes_eos"]):
            for eos_ids in ([EOS], [EOS, SECOND_EOS]):
                folder = write_folder(self, {"eos_token_id": eos_ids})
                engine = loaded_engine(self, folder=folder, faults=faults, eos_after=2)
                answer = single_sequence(engine.generate(max_new_tokens=9))
                self.assertEqual(answer["output_ids"], [*expected_ids(PROMPT, 2), eos_ids[-1]])
                self.assertEqual(answer["finish"], "eos")
                (request,) = engine.records("prompt_ids")
                self.assertEqual(request["params"]["end_id"], EOS)
                self.assertEqual(request["params"]["stop_token_ids"], eos_ids[1:] or None)
                self.assertEqual(request["params"]["include_stop_str_in_output"], len(eos_ids) > 1)

    def test_an_ignored_eos_id_does_not_end_a_sequence(self):
        folder = write_folder(self, {"eos_token_id": expected_ids(PROMPT, 3)})
        engine = loaded_engine(self, folder=folder)
        answer = single_sequence(engine.generate(max_new_tokens=5, ignore_eos=True))
        self.assertEqual((answer["output_ids"], answer["finish"]), (expected_ids(PROMPT, 5), "length"))
        self.assertEqual(engine.records("prompt_ids")[0]["params"]["stop_token_ids"], None)

    def test_a_model_without_eos_ids_generates_the_requested_number_of_tokens(self):
        engine = loaded_engine(self, folder=write_folder(self, {"eos_token_id": None}))
        self.assertEqual(ids(engine.generate(max_new_tokens=3)), expected_ids(PROMPT, 3))
        self.assertEqual(engine.records("prompt_ids")[0]["params"]["end_id"], -1)

    def test_a_request_with_too_few_or_too_many_tokens_fails(self):
        after_end = "a token for sequence 0 after it was done"
        for fault, message in (("ends_early", "after 3 tokens"), ("extra_token", after_end)):
            engine = loaded_engine(self, faults=[fault])
            failed = engine.generate(max_new_tokens=4, ignore_eos=True)
            self.assertEqual(failed["type"], "failed")
            self.assertIn(message, failed["message"])

    def test_sampling_options_reach_the_library_and_only_temperature_0_is_greedy(self):
        engine = loaded_engine(self)
        requested = {"temperature": 0.7, "top_k": 5, "top_p": 0.9, "seed": 11}
        first = engine.generate(max_new_tokens=8, ignore_eos=True, sampling=requested)
        self.assertEqual(ids(first), ids(engine.generate(max_new_tokens=8, ignore_eos=True, sampling=requested)))
        engine.generate(max_new_tokens=8, ignore_eos=True, sampling={"temperature": 1.5, "seed": 4})
        engine.generate(max_new_tokens=2, ignore_eos=True, sampling={"temperature": 0.0})
        params = [record["params"] for record in engine.records("prompt_ids")]
        self.assertEqual({name: params[0][name] for name in requested}, requested)
        # The library is greedy without top_k and top_p, so a value that keeps all tokens is sent.
        self.assertEqual((params[2]["top_k"], params[2]["top_p"]), (None, 1.0))
        self.assertEqual((params[3]["top_k"], params[3]["temperature"]), (1, None))

    def test_each_sequence_of_a_batch_has_its_own_ids(self):
        engine = loaded_engine(self)
        prompts = [[1, 2], [3, 4, 5], [6]]
        answer = engine.request(
            type="generate", prompts_ids=prompts, max_new_tokens=4, ignore_eos=True, padding="packed"
        )
        sequences = answer["iterations"][0]["sequences"]
        self.assertEqual([it["output_ids"] for it in sequences], [expected_ids(prompt, 4) for prompt in prompts])
        failed = engine.request(type="generate", prompts_ids=prompts, max_new_tokens=4)
        self.assertEqual(failed["message"], "padding `left`: expected one of `packed`")

    def test_a_batch_beyond_max_batch_is_refused(self):
        engine = loaded_engine(self, options={"max_batch": 2})
        failed = engine.request(type="generate", prompts_ids=[[1], [2], [3]], max_new_tokens=1)
        self.assertEqual(failed["message"], "a batch of 3: `max_batch` of this load is 2")

    def test_each_overlapping_request_gets_its_own_answer(self):
        engine = loaded_engine(self, token_s=0.002)
        prompts = {f"r{index}": [index + 1, 40 + index] for index in range(5)}
        for name, prompt in prompts.items():
            engine.send(type="generate", id=name, prompt_ids=prompt, max_new_tokens=6, ignore_eos=True)
        answers = {message["id"]: message for message in (engine.receive() for _ in prompts)}
        self.assertEqual({name: ids(it) for name, it in answers.items()}, {n: expected_ids(p, 6) for n, p in prompts.items()})
        self.assertEqual(len(engine.records("prompt_ids")), 5)

    def test_no_response_is_lost_with_two_requests_at_a_time(self):
        """The stand-in records a `lost_wake` if the reader's event loop stops, between requests or while the engine writes."""
        for stream in (False, True):
            with self.subTest(stream=stream):
                engine = loaded_engine(self, token_s=0.001)
                for pair in range(60):
                    prompts = {2 * pair + index: [1 + index, 2 + pair] for index in (0, 1)}
                    for name, prompt in prompts.items():
                        engine.send(
                            type="generate", id=name, prompt_ids=prompt, max_new_tokens=8, ignore_eos=True, stream=stream
                        )
                    for _ in prompts:
                        answer = engine.receive_except("token")
                        self.assertEqual(ids(answer), expected_ids(prompts[answer["id"]], 8))
                self.assertEqual(engine.records("lost_wake"), [])

    def test_no_response_is_lost_with_one_request_at_a_time(self):
        for prompts in ([PROMPT], [PROMPT, [1, 2], [1, 3, 4], [1, 9]]):
            for stream in (False, True):
                with self.subTest(batch=len(prompts), stream=stream):
                    engine = loaded_engine(self, token_s=0.001)
                    for _ in range(40):
                        fields = {"max_new_tokens": 8, "ignore_eos": True, "padding": "packed", "stream": stream}
                        engine.send(type="generate", prompts_ids=prompts, **fields)
                        (iteration,) = engine.receive_except("token")["iterations"]
                        output_ids = [it["output_ids"] for it in iteration["sequences"]]
                        self.assertEqual(output_ids, [expected_ids(prompt, 8) for prompt in prompts])
                    self.assertEqual(engine.records("lost_wake"), [])

    def test_a_cancelled_request_ends_inside_the_library_too(self):
        for overlapping in (False, True):
            engine = loaded_engine(self, token_s=0.01)
            engine.send(type="generate", id=1, prompt_ids=PROMPT, max_new_tokens=100, ignore_eos=True)
            if overlapping:
                engine.send(type="generate", id=2, prompt_ids=[7], max_new_tokens=3, ignore_eos=True)
            engine.send(type="cancel", id=1)
            answers = [engine.receive() for _ in range(1 + overlapping)]
            answer = next(it for it in answers if it["id"] == 1)
            self.assertEqual(single_sequence(answer)["finish"], "cancelled")
            self.assertLess(len(ids(answer)), 100)
            self.assertEqual(ids(engine.generate(max_new_tokens=2, ignore_eos=True)), expected_ids(PROMPT, 2))

    def test_a_request_beyond_the_context_does_not_reach_the_library(self):
        engine = loaded_engine(self)
        failed = engine.generate(prompt=[1] * 120, max_new_tokens=9)  # the context is 128
        self.assertEqual((failed["kind"], engine.records("prompt_ids")), ("context", []))

    def test_a_request_without_cache_is_refused(self):
        failed = loaded_engine(self).generate(max_new_tokens=1, use_cache=False)
        self.assertEqual((failed["kind"], "use_cache" in failed["message"]), ("unsupported", True))

    def test_text_without_a_tokenizer_is_refused(self):
        failed = loaded_engine(self).request(type="generate", prompt="Hello")
        self.assertEqual((failed["kind"], failed["hint"]), ("model", "send `prompt_ids`"))

    def test_a_broken_tokenizer_fails_prompts_of_text_but_not_of_ids(self):
        folder = write_folder(self)
        (folder / "tokenizer.json").write_text("{}")
        engine = loaded_engine(self, folder=folder)
        for id in (None, 1, 2):
            failed = engine.request(type="generate", prompt="Hello", id=id)
            self.assertEqual((failed["type"], failed["kind"], failed.get("id")), ("failed", "model", id))
            # A Python without `tokenizers` gives the second of these messages.
            self.assertRegex(failed["message"], "tokenizer.json`: |`tokenizers` is not installed")
            answer = engine.generate(max_new_tokens=2, ignore_eos=True, id=id)
            self.assertEqual(ids(answer), expected_ids(PROMPT, 2))
            self.assertNotIn("text", single_sequence(answer))


class Scores(unittest.TestCase):
    def test_the_log_probability_of_an_id_comes_from_the_logits_at_the_previous_id(self):
        engine = loaded_engine(self)
        first, second = PROMPT, [*PROMPT, *expected_ids(PROMPT, 3)]
        scored = engine.request(type="score", sequences=[first, second])
        self.assertEqual([len(values) for values in scored["logprobs"]], [3, 6])
        self.assertEqual(scored["logprobs"][1][:3], scored["logprobs"][0])
        # A greedy id is the most likely of all 64 ids, so its probability is at least 1/64.
        for value in scored["logprobs"][1][3:]:
            self.assertTrue(-math.log(64) <= value < 0, value)
        records = engine.records("prompt_ids")
        self.assertEqual([record["prompt_ids"] for record in records], [first[:-1], second[:-1]])
        self.assertTrue(all(record["params"]["return_context_logits"] for record in records))

    def test_fewer_logits_than_positions_are_a_failure(self):
        failed = loaded_engine(self, few_logits=True).request(type="score", sequences=[PROMPT])
        self.assertEqual(failed["message"], "TensorRT-LLM returned logits for 1 of 3 positions")

    def test_score_of_more_ids_than_one_pass_computes_is_refused(self):
        engine = loaded_engine(self, folder=write_folder(self, {"max_position_embeddings": 20000}))
        failed = engine.request(type="score", sequences=[[1] * 8194])
        message = "`score`: 8194 ids, but one pass computes at most 8193"
        self.assertEqual((failed["kind"], failed["message"]), ("unsupported", message))

    def test_score_without_context_logits_is_refused_with_a_hint(self):
        options = {"backend": "tensorrt", "cuda_graphs": "false", "overlap": "false", "fp8": "off"}
        failed = loaded_engine(self, options=options).request(type="score", sequences=[PROMPT])
        self.assertEqual((failed["kind"], failed["hint"]), ("unsupported", "--set context_logits=true"))
        engine = loaded_engine(self, options={**options, "context_logits": "true"})
        self.assertEqual(engine.request(type="score", sequences=[PROMPT])["type"], "scored")


class Failures(unittest.TestCase):
    def test_a_request_that_fails_in_the_library_is_reported_and_the_engine_continues(self):
        engine = loaded_engine(self, faults=["request_fails"])
        failed = engine.generate(max_new_tokens=2)
        self.assertEqual(failed["kind"], "device")
        self.assertIn("RequestError: CUDA error: an illegal memory access", failed["message"])
        self.assertEqual(engine.generate(max_new_tokens=2)["kind"], "device")

    def test_the_submitted_sequences_of_a_refused_batch_are_aborted(self):
        engine = loaded_engine(self, refused_prompt=[7, 7], token_s=0.001)
        fields = {"max_new_tokens": 100, "ignore_eos": True, "padding": "packed"}
        failed = engine.request(type="generate", prompts_ids=[PROMPT, [7, 7]], **fields)
        self.assertIn("the library refuses this prompt", failed["message"])
        self.assertEqual(engine.records("aborted"), [{"aborted": PROMPT}])
        self.assertEqual(ids(engine.generate(max_new_tokens=2, ignore_eos=True)), expected_ids(PROMPT, 2))

    def test_a_dead_worker_process_is_a_failure(self):
        for faults in (["worker_dies"], ["worker_dies", "in_a_container"]):
            engine = loaded_engine(self, faults=faults)
            failed = engine.generate(max_new_tokens=2)
            (record,) = engine.records("workers")
            self.assertEqual(failed["kind"], "device")
            self.assertEqual(failed["message"], f"a worker process of TensorRT-LLM (pid {record['workers'][0]}) has ended")
            self.assertEqual(engine.generate(max_new_tokens=2)["message"], failed["message"])

    def test_a_request_can_be_cancelled_if_the_library_stops_responding(self):
        engine = loaded_engine(self, faults=["stops_responding"])
        engine.send(type="generate", id=1, prompt_ids=PROMPT, max_new_tokens=5, ignore_eos=True, stream=True)
        self.assertEqual([engine.receive()["type"] for _ in range(2)], ["token", "token"])
        engine.send(type="cancel", id=1)
        answer = single_sequence(engine.receive())
        self.assertEqual((answer["finish"], answer["output_ids"]), ("cancelled", expected_ids(PROMPT, 2)))
        self.assertEqual(engine.records("aborted"), [{"aborted": PROMPT}])


if __name__ == "__main__":
    unittest.main()
