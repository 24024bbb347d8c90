"""Tests the kit in memory: the answer to every request, and that an invalid request does not affect the others."""

import contextlib
import io
import json
import queue
import time
import unittest
import unittest.mock

from engine_kit_conversation import END, Conversation, OutputClosed
from engine_kit_wire import Failed, Framer
from toy_engine import (
    EXITS,
    FAILS,
    FAILS_ALONE,
    PUSHES_AFTER_END,
    RAISES,
    RUNS_OUT_OF_MEMORY,
    STAYS_IN_SLOT,
    STOPS_EARLY,
    LongStepsModel,
    SlotsEngine,
    ToyEngine,
    ToyModel,
)

MODEL = {"ORCHESTRATE_MODEL": "."}
LOAD = {"type": "load", "model": "."}


class InMemoryConversation:
    """A conversation with an engine, without a process."""

    def __init__(self, engine=None, environment=MODEL, after_write=None, clock=time.perf_counter_ns):
        self.engine, self.inbox, self.messages = engine or ToyEngine(), queue.SimpleQueue(), []
        self.summaries, self.after_write, self.clock = io.StringIO(), after_write, clock
        self.conversation = Conversation(self.engine, self.inbox, self._receive, environment, self.summaries, clock)

    def send(self, *lines):
        for line in lines:
            line = line if isinstance(line, bytes) else json.dumps(line).encode()
            for frame in Framer().push(line + b"\n"):
                self.inbox.put((self.clock(), frame))

    def run(self, *lines):
        self.send(*lines)
        self.inbox.put(END)
        with contextlib.redirect_stderr(io.StringIO()) as stderr:
            self.conversation.run()
        self.stderr = stderr.getvalue()
        return self.messages

    def _receive(self, line):
        assert line.endswith(b"\n") and line.count(b"\n") == 1
        self.messages.append(json.loads(line))
        if self.after_write is not None:
            self.after_write(self)


def converse(*lines, engine=None, environment=MODEL):
    return InMemoryConversation(engine, environment).run(*lines)


def score_with_most_likely(model, ids):
    logprobs = model.score(ids)
    return logprobs, [3] * len(logprobs), [-0.5] * len(logprobs)


def ids(message):
    return [sequence["output_ids"] for iteration in message["iterations"] for sequence in iteration["sequences"]]


class Loads(unittest.TestCase):
    def test_hello_has_the_engines_facts_and_the_protocols_defaults(self):
        (hello,) = converse({"type": "hello", "protocol": 1})
        self.assertEqual((hello["type"], hello["protocol"], hello["engine"]), ("hello", 1, "toy"))
        self.assertEqual((hello["output"], hello["stamp"], hello["deterministic"]), ("ids", "token", True))
        capabilities = hello["capabilities"]
        values = [capabilities[name] for name in ("batch", "concurrency", "stream", "use_cache_toggle")]
        self.assertEqual(values, [4, 1, True, False])

    def test_a_load_reports_progress_phases_and_the_configuration_in_effect(self):
        engine = ToyEngine()
        progress, half, loaded = converse({**LOAD, "threads": 3, "options": {"speed": "some"}}, engine=engine)
        self.assertEqual(progress, {"type": "progress", "phase": "weights"})
        self.assertEqual(half, {"type": "progress", "phase": "weights", "fraction": 0.5, "note": "half of the weights"})
        self.assertEqual((loaded["type"], loaded["threads"], loaded["device"]), ("loaded", 3, "cpu"))
        self.assertEqual(loaded["weights_dtype"], "f32")
        self.assertEqual([phase["name"] for phase in loaded["phases"]], ["weights"])
        self.assertGreaterEqual(loaded["load_ns"], loaded["phases"][0]["ns"])

    def test_an_unsupported_load_is_refused_before_the_engine_is_called(self):
        for change, kind, words in [
            ({"options": {"colour": "red"}}, "bad_request", "unknown option `colour`"),
            ({"device": "tpu"}, "unsupported", "device `tpu`: expected one of `cpu`, `cuda`"),
            ({"dtype": "q4_0"}, "unsupported", "dtype `q4_0`: expected one of `f32`, `bf16`"),
            ({"model": "/no/such/model"}, "model", "no model at `/no/such/model`"),
            ({"model": "a\0b"}, "model", "no model at"),
            ({"threads": 0}, "bad_request", "`threads`: expected at least 1, found 0"),
        ]:
            engine = ToyEngine()
            (failed,) = converse({**LOAD, **change}, engine=engine)
            self.assertEqual((failed["type"], failed["kind"]), ("failed", kind))
            self.assertIn(words, failed["message"])
            self.assertEqual(engine.load_requests, [])

    def test_a_planted_delay_precedes_every_token_but_the_first(self):
        engine, request = ToyEngine(), {"prompt_ids": [5], "max_new_tokens": 3, "ignore_eos": True}
        planted = {**LOAD, "options": {"planted_delay_us": "3000", "speed": "some"}}
        answers = converse({**LOAD, "options": {"planted_delay_us": 0}}, planted, request, engine=engine)
        self.assertEqual([load.options for load in engine.load_requests], [{}, {"speed": "some"}])
        (sequence,) = answers[-1]["iterations"][0]["sequences"]
        first, second, third = sequence["token_ns"]
        self.assertTrue(second - first >= 3_000_000 and third - second >= 3_000_000, sequence)
        for invalid in (-1, 0.5, "soon", True, 2**64):
            (refused,) = converse({**LOAD, "options": {"planted_delay_us": invalid}})
            self.assertEqual(refused["kind"], "bad_request")
            self.assertIn("option `planted_delay_us`: expected a whole number, found", refused["message"])

    def test_the_default_dtype_may_depend_on_the_device(self):
        engine = ToyEngine()
        engine.default_dtype = lambda request: "bf16" if request.device == "cuda" else None
        converse(LOAD, {**LOAD, "device": "cuda"}, {**LOAD, "device": "cuda", "dtype": "f32"}, engine=engine)
        self.assertEqual([load.dtype for load in engine.load_requests], ["f32", "bf16", "f32"])

    def test_a_numbered_gpu_is_accepted_and_cpu_0_is_the_only_cpu(self):
        engine = ToyEngine()
        converse({**LOAD, "device": "cuda:1"}, {**LOAD, "device": "cpu:0"}, engine=engine)
        self.assertEqual([load.device for load in engine.load_requests], ["cuda:1", "cpu"])
        (failed,) = converse({**LOAD, "device": "cpu:1"}, engine=engine)
        self.assertEqual((failed["kind"], failed["message"]), ("unsupported", "device `cpu:1`: expected one of `cpu`, `cuda`"))

    def test_a_generate_before_any_load_loads_the_environments_model(self):
        environment = {**MODEL, "ORCHESTRATE_DTYPE": "bf16", "ORCHESTRATE_THREADS": "2", "ORCHESTRATE_DEVICE": ""}
        first, second = converse({"prompt": "a"}, {"prompt": "a"}, environment=environment)
        self.assertEqual((first["loaded"]["weights_dtype"], first["loaded"]["threads"]), ("bf16", 2))
        self.assertGreater(first["iterations"][0]["start_ns"], first["loaded"]["load_ns"])
        self.assertNotIn("loaded", second)

    def test_a_generate_without_a_model_fails_with_a_hint(self):
        (failed,) = converse({"prompt": "a"}, environment={})
        self.assertEqual(failed["kind"], "model")
        self.assertIn("ORCHESTRATE_MODEL", failed["message"])
        (failed,) = converse({"prompt": "a"}, environment={**MODEL, "ORCHESTRATE_THREADS": "many"})
        self.assertIn("`ORCHESTRATE_THREADS`", failed["message"])

    def test_after_a_failed_load_no_other_model_is_loaded(self):
        failed, refused = converse({**LOAD, "options": {"speed": "none"}}, {"prompt": "a"})[-2:]
        self.assertEqual(failed["message"], "the engine raised ValueError: no speed")
        self.assertEqual((refused["kind"], refused["message"]), ("model", "no model: the load of `.` failed"))
        _, refused = converse({**LOAD, "device": "tpu"}, {"prompt": "a"})
        self.assertEqual(refused["kind"], "model")

    def test_an_invalid_load_leaves_the_previous_model(self):
        *_, failed, answer = converse(LOAD, {**LOAD, "device": "tpu"}, {"prompt": "a"})
        self.assertEqual((failed["type"], answer["type"]), ("failed", "generated"))
        self.assertNotIn("loaded", answer)

    def test_a_failed_load_of_the_environments_model_is_repeated(self):
        environment = {**MODEL, "ORCHESTRATE_DEVICE": "tpu"}
        first, second = converse({"prompt": "a"}, {"prompt": "a"}, environment=environment)
        self.assertEqual((first["kind"], second["kind"]), ("unsupported", "unsupported"))

    def test_facts_are_empty_before_a_load_and_known_after_it(self):
        before, *_, after = converse({"type": "facts"}, LOAD, {"type": "facts"})
        self.assertEqual(before, {"type": "facts"})
        self.assertEqual(after["vocabulary_size"], 300)


class GenerateRequests(unittest.TestCase):
    def test_every_id_has_a_timestamp_in_order(self):
        (answer,) = converse({"prompt_ids": [1, 7], "max_new_tokens": 5, "iterations": 3, "warmup": 2})
        self.assertEqual(ids(answer), [[8, 9, 10, 11, 12]] * 3)
        self.assertEqual(len(answer["warmup_iterations"]), 2)
        last = 0
        for iteration in answer["warmup_iterations"] + answer["iterations"]:
            (sequence,) = iteration["sequences"]
            stamps = [last, iteration["start_ns"], *sequence["token_ns"], iteration["end_ns"]]
            self.assertEqual(stamps, sorted(stamps))
            self.assertEqual((len(sequence["token_ns"]), sequence["prompt_tokens"]), (5, 2))
            last = iteration["end_ns"]

    def test_a_request_without_a_type_gets_a_summary_on_stderr(self):
        conversation = InMemoryConversation()
        (answer,) = conversation.run({"prompt": "ab", "iterations": 50, "max_new_tokens": 4})
        self.assertEqual(list(answer)[-1], "summary")
        self.assertEqual((answer["summary"]["iterations"], answer["summary"]["output_tokens"]), (50, 200))
        self.assertTrue(answer["summary"]["text"].startswith("50 iterations, 200 tokens; first token "))
        self.assertIn('wrote: "cdef"', conversation.summaries.getvalue())
        conversation = InMemoryConversation()
        conversation.run({"type": "generate", "prompt": "ab"})
        self.assertEqual(conversation.summaries.getvalue(), "")

    def test_eos_ends_a_sequence_unless_it_is_ignored(self):
        # The toy has 300 ids: after 299 it returns 0, 1 and then EOS (2).
        with_eos, without_eos = converse(
            {"prompt_ids": [299], "max_new_tokens": 5}, {"prompt_ids": [299], "max_new_tokens": 5, "ignore_eos": True}
        )
        for answer, expected in ((with_eos, ([[0, 1, 2]], "eos")), (without_eos, ([[0, 1, 2, 3, 4]], "length"))):
            self.assertEqual((ids(answer), answer["iterations"][0]["sequences"][0]["finish"]), expected)

    def test_eos_as_the_last_requested_token_is_an_end_of_sequence(self):
        (answer,) = converse({"prompt_ids": [1], "max_new_tokens": 1})
        self.assertEqual(answer["iterations"][0]["sequences"][0]["finish"], "eos")

    def test_a_batch_has_a_sequence_for_each_prompt(self):
        (answer,) = converse({"prompts_ids": [[1, 7], [1, 2, 9]], "max_new_tokens": 2})
        self.assertEqual(ids(answer), [[8, 9], [10, 11]])
        (answer,) = converse({"prompts": ["a", "b"], "max_new_tokens": 1})
        self.assertEqual([sequence["text"] for sequence in answer["iterations"][0]["sequences"]], ["b", "c"])

    def test_an_empty_prompt_is_read_as_only_the_bos_token(self):
        (answer,) = converse({"prompt": "", "max_new_tokens": 1})
        self.assertEqual(answer["iterations"][0]["sequences"][0]["prompt_tokens"], 1)

    def test_streamed_ids_and_timestamps_equal_the_ids_and_timestamps_of_the_answer(self):
        *tokens, answer = converse(
            {"id": 4, "prompt_ids": [1, 7], "max_new_tokens": 3, "iterations": 2, "warmup": 1, "stream": True}
        )
        for number, iteration in enumerate(answer["iterations"]):
            streamed = [token for token in tokens if token["iteration"] == number]
            self.assertEqual([token["ns"] for token in streamed], iteration["sequences"][0]["token_ns"])
            self.assertEqual([token["ids"][0] for token in streamed], iteration["sequences"][0]["output_ids"])
            self.assertEqual([token["index"] for token in streamed], [0, 1, 2])
        self.assertEqual((len(tokens), {token["id"] for token in tokens}), (6, {4}))

    def test_the_same_seed_gives_the_same_tokens_and_another_seed_gives_others(self):
        request = {"prompt_ids": [9], "max_new_tokens": 40, "iterations": 2, "sampling": {"temperature": 1, "seed": 5}}
        answer, other = converse(request, {**request, "sampling": {"temperature": 1, "seed": 6}})
        first, second = ids(answer)
        self.assertEqual(first, second)
        self.assertNotEqual(first, ids(other)[0])

    def test_an_unsupported_request_is_refused_before_any_work(self):
        no_capabilities = dict(
            stream=False, prompt_ids=False, batch=1, ignore_eos=False, sampling=False, score=False, speculation=[]
        )
        for request in [
            {"prompt": "a", "stream": True},
            {"prompt_ids": [1]},
            {"prompts": ["a", "b"]},
            {"prompt": "a", "ignore_eos": True},
            {"prompt": "a", "sampling": {"temperature": 1}},
            {"prompt": "a", "use_cache": False},
            {"prompt": "a", "speculation": "prompt_lookup"},
            {"type": "score", "sequences": [[1, 2]]},
        ]:
            (failed,) = converse(request, engine=ToyEngine(**no_capabilities))
            self.assertEqual((failed["type"], failed["kind"]), ("failed", "unsupported"), request)
        (failed,) = converse({"prompts": ["a", "bb"], "padding": "right"})
        self.assertEqual(failed["message"], "padding `right`: expected one of `left`, `packed`")
        (batch,) = converse({"prompts": ["a", "b"], "padding": "right", "sampling": {"temperature": 0}})
        (greedy,) = converse({"prompt": "a", "sampling": {"temperature": 1e-300}}, engine=ToyEngine(**no_capabilities))
        self.assertEqual((batch["type"], greedy["type"]), ("generated", "generated"))

    def test_a_request_with_speculation_reports_drafted_and_accepted_tokens(self):
        with_drafts, plain = converse({"prompt": "a", "speculation": "prompt_lookup"}, {"prompt": "a"})
        drafts = lambda answer: [answer["iterations"][0]["sequences"][0].get(f"{word}_tokens") for word in ("drafted", "accepted")]
        self.assertEqual((drafts(with_drafts), drafts(plain)), ([2, 1], [None, None]))

    def test_a_request_beyond_the_context_or_vocabulary_is_refused_before_any_work(self):
        too_long, invalid_id, answer = converse(
            {"prompt_ids": [3] * 60, "max_new_tokens": 5},
            {"prompt_ids": [1, 300]},
            {"prompt_ids": [3] * 60, "max_new_tokens": 4},
        )
        self.assertEqual(too_long["kind"], "context")
        self.assertEqual(too_long["message"], "prompt of 60 tokens and 5 new ones exceed the context of 64")
        self.assertEqual(invalid_id["message"], "`prompt_ids[1]`: id 300 is outside the vocabulary of 300")
        self.assertEqual(answer["type"], "generated")

    def test_the_first_of_several_errors_is_the_answer(self):
        for request, kind, message in [
            ({"prompts": ["a", "b"], "max_new_tokens": 0}, "bad_request", "`max_new_tokens`"),
            ({"prompt_ids": [300], "stream": True, "max_new_tokens": 99}, "unsupported", "`stream`"),
            ({"prompts": ["a", "b"], "max_new_tokens": 99}, "unsupported", "a batch of 2"),
            ({"prompt_ids": [300], "max_new_tokens": 99}, "bad_request", "`prompt_ids[0]`: id 300"),
        ]:
            (failed,) = converse(request, engine=ToyEngine(stream=False, batch=1))
            self.assertEqual(failed["kind"], kind, request)
            self.assertTrue(failed["message"].startswith(message), failed)

    def test_an_unsupported_request_is_refused_without_a_load(self):
        conversation = InMemoryConversation(engine=ToyEngine(stream=False), environment={"ORCHESTRATE_MODEL": "/no/such/model"})
        failed, not_loaded = conversation.run({"prompt": "a", "stream": True}, {"prompt": "a"})
        self.assertEqual((failed["kind"], not_loaded["kind"]), ("unsupported", "model"))

    def test_an_engine_without_a_tokenizer_refuses_text(self):
        text, ids = converse({"prompts": ["a"]}, {"prompt_ids": [9]}, engine=ToyEngine(prompt=False))
        self.assertEqual((text["kind"], text["message"]), ("unsupported", "`prompts`: this engine takes ids"))
        self.assertEqual(ids["type"], "generated")

    def test_an_error_names_the_field_of_the_request(self):
        batch, single = converse({"prompts_ids": [[9], [300]]}, {"prompts_ids": [[300]]})
        self.assertEqual(batch["message"], "`prompts_ids[1][0]`: id 300 is outside the vocabulary of 300")
        self.assertEqual(single["message"], "`prompts_ids[0][0]`: id 300 is outside the vocabulary of 300")

    def test_scores_are_in_order_and_minus_infinity_is_null(self):
        (scored,) = converse({"type": "score", "id": "s", "sequences": [[1, 7, 2], [1, 5]]})
        self.assertEqual((scored["id"], scored["logprobs"]), ("s", [[-7.0, None], [-5.0]]))
        self.assertGreaterEqual(scored["ns"], 0)

    def test_the_most_likely_ids_are_given_by_a_model_that_knows_them_and_only_on_request(self):
        request = {"type": "score", "sequences": [[1, 7, 2], [1, 5]]}
        without, ignored = converse(request, {**request, "most_likely": True})
        self.assertNotIn("most_likely_ids", without)
        self.assertEqual({**ignored, "ns": 0}, {**without, "ns": 0})
        with unittest.mock.patch.object(ToyModel, "score_with_most_likely", create=True, new=score_with_most_likely):
            (scored,) = converse({**request, "most_likely": True})
        self.assertEqual(scored["logprobs"], without["logprobs"])
        self.assertEqual(scored["most_likely_ids"], [[3, 3], [3]])
        self.assertEqual(scored["most_likely_logprobs"], [[-0.5, -0.5], [-0.5]])


class Failures(unittest.TestCase):
    def test_every_exception_of_an_engine_is_one_failure_and_the_engine_continues(self):
        for prompt_start, kind, message in [
            (RAISES, "internal", "the engine raised ValueError: something"),
            (FAILS, "device", "the device was removed"),
            (RUNS_OUT_OF_MEMORY, "out_of_memory", "9 GB were requested"),
            (STOPS_EARLY, "internal", "the engine returned 1 of 32 tokens of sequence 0 and stopped"),
            (PUSHES_AFTER_END, "internal", "the engine returned a token for sequence 0 after it was done"),
            (EXITS, "internal", "the engine raised SystemExit: 3"),
        ]:
            conversation = InMemoryConversation()
            failed, answer = conversation.run({"id": 1, "prompt_ids": [prompt_start, 9]}, {"id": 2, "prompt_ids": [9]})
            self.assertEqual((failed["kind"], failed["message"], failed["id"]), (kind, message, 1))
            self.assertEqual((answer["type"], answer["id"]), ("generated", 2))
            self.assertEqual("Traceback" in conversation.stderr or "File" in conversation.stderr, prompt_start in (RAISES, EXITS))

    def test_every_invalid_line_is_answered_once_and_the_engine_continues(self):
        invalid = [
            b'<"prompt":"Hello","iterations":50}',
            b"",
            b"a" * 20_000_000,
            bytes(range(11, 256)),
            b'{"prompt":"a","iterations":-1}',
            b'{"prompt":"a","max_new_tokens":1e400}',
            b'{"prompt":"a","x":' + b"[" * 100_000,
        ]
        *failures, answer = converse(*invalid, {"prompt": "a"})
        self.assertEqual([failed["kind"] for failed in failures], ["bad_request"] * len(invalid))
        self.assertEqual(failures[2]["message"], "line of 20000000 bytes is longer than 16777216")
        self.assertEqual(answer["type"], "generated")

    def test_an_answer_longer_than_a_line_is_a_failure_with_its_id(self):
        with unittest.mock.patch("engine_kit_conversation.MAX_LINE_BYTES", 2000):
            failed, answer = converse({"id": 3, "prompt_ids": [9], "iterations": 9}, {"id": 4, "prompt_ids": [9]})
        self.assertEqual((failed["type"], failed["id"], failed["kind"]), ("failed", 3, "bad_request"))
        self.assertIn("is longer than a line may be", failed["message"])
        self.assertEqual(answer["id"], 4)

    def test_a_missing_library_is_unavailable_with_a_hint(self):
        engine = ToyEngine()
        engine.hello = unittest.mock.Mock(side_effect=Failed("unavailable", "`libtoy.so` was not found", "install toy"))
        first, second = converse({"type": "hello", "protocol": 1}, {"prompt": "a"}, engine=engine)
        self.assertEqual((first["kind"], first["hint"]), ("unavailable", "install toy"))
        self.assertEqual(second["kind"], "unavailable")

    def test_a_closed_output_ends_the_conversation(self):
        def close_pipe(_):
            raise BrokenPipeError(32, "broken pipe")

        with self.assertRaises(OutputClosed):
            InMemoryConversation(after_write=close_pipe).run({"type": "facts"}, {"type": "facts"})


class EndOfInput(unittest.TestCase):
    def test_shutdown_answers_earlier_requests_and_no_later_ones(self):
        answer, bye = converse({"prompt": "a"}, {"type": "shutdown"}, {"prompt": "a"})
        self.assertEqual((answer["type"], bye), ("generated", {"type": "bye"}))

    def test_requests_before_the_end_of_the_input_are_all_answered(self):
        self.assertEqual(len(converse(*[{"prompt": "a"}] * 5)), 5)


def cancel_after(count):
    """Cancels request 1 after this number of messages."""
    return lambda conversation: len(conversation.messages) == count and conversation.send({"type": "cancel", "id": 1})


class Cancels(unittest.TestCase):
    def test_a_cancel_stops_a_running_request_at_its_next_token(self):
        conversation = InMemoryConversation(after_write=cancel_after(3))
        *tokens, answer = conversation.run(
            {"id": 1, "prompt_ids": [9], "max_new_tokens": 20, "iterations": 9, "stream": True}
        )
        (iteration,) = answer["iterations"]
        self.assertEqual((ids(answer), iteration["sequences"][0]["finish"]), ([[10, 11, 12, 13]], "cancelled"))
        self.assertEqual(len(tokens), 4)

    def test_a_request_cancelled_before_its_start_has_no_tokens(self):
        first, cancelled, third = converse(
            {"id": 1, "prompt_ids": [9]},
            {"id": 2, "prompts_ids": [[9, 9, 9], [8]]},
            {"type": "cancel", "id": 2},
            {"type": "cancel", "id": 77},
            {"id": 3, "prompt_ids": [9]},
        )
        self.assertEqual((first["id"], cancelled["id"], third["id"]), (1, 2, 3))
        sequences = cancelled["iterations"][0]["sequences"]
        self.assertEqual([sequence["prompt_tokens"] for sequence in sequences], [3, 1])
        self.assertEqual({sequence["finish"] for sequence in sequences}, {"cancelled"})
        self.assertEqual(len(ids(third)[0]), 32)

    def test_an_id_is_in_use_until_its_request_is_answered(self):
        first, refused, bye = converse({"id": 1, "prompt_ids": [9]}, {"id": 1, "prompt_ids": [9]}, {"type": "shutdown"})
        self.assertNotIn("id", refused)
        self.assertIn("`id`: 1 belongs", refused["message"])
        self.assertEqual((first["id"], first["type"], bye["type"]), (1, "generated", "bye"))


class OverlappingRequests(unittest.TestCase):
    def test_requests_with_ids_overlap_and_the_shortest_is_answered_first(self):
        engine = SlotsEngine()
        short, middle, long = converse(
            {"id": "long", "prompt_ids": [9], "max_new_tokens": 20},
            {"id": "short", "prompt_ids": [50], "max_new_tokens": 2, "iterations": 2},
            {"id": "middle", "prompts_ids": [[80], [90]], "max_new_tokens": 3},
            engine=engine,
        )
        self.assertEqual([short["id"], middle["id"], long["id"]], ["short", "middle", "long"])
        self.assertEqual(ids(short), [[51, 52], [51, 52]])
        self.assertEqual(ids(middle), [[81, 82, 83], [91, 92, 93]])
        self.assertEqual(ids(long), [list(range(10, 30))])
        self.assertEqual(max(engine.taken_slots), 2, "two requests at once")

    def test_requests_without_an_id_run_alone_and_in_order(self):
        engine = SlotsEngine()
        answers = converse(*[{"prompt_ids": [first], "max_new_tokens": 2} for first in (5, 6, 7)], engine=engine)
        self.assertEqual([ids(answer)[0][0] for answer in answers], [6, 7, 8])
        self.assertEqual(engine.taken_slots, [])

    def test_a_load_waits_for_the_requests_before_it(self):
        *_, first, loaded, second = converse(
            {"id": 1, "prompt_ids": [9]}, {**LOAD, "threads": 2}, {"id": 2, "prompt_ids": [9]}, engine=SlotsEngine()
        )
        self.assertEqual([first["type"], loaded["type"], second["type"]], ["generated", "loaded", "generated"])

    def test_a_failed_step_fails_all_admitted_requests_and_a_failed_admission_only_one(self):
        # After two tokens the second request has the id at which the toy raises an exception, or calls `sys.exit`.
        for fault in (RAISES, EXITS):
            *failures, after = converse(
                {"id": 1, "prompt_ids": [50]},
                {"id": 2, "prompt_ids": [fault - 2]},
                {"id": 3, "prompt_ids": [50]},
                engine=SlotsEngine(),
            )
            self.assertEqual([(failed["id"], failed["kind"]) for failed in failures], [(1, "internal"), (2, "internal")])
            self.assertEqual((after["id"], after["type"]), (3, "generated"))
        refused, first = converse({"id": 1, "prompt_ids": [50]}, {"id": 2, "prompt_ids": [FAILS]}, engine=SlotsEngine())
        self.assertEqual((refused["id"], refused["kind"]), (2, "device"))
        self.assertEqual((first["id"], len(ids(first)[0])), (1, 32))

    def test_a_step_can_fail_one_request_while_the_others_continue(self):
        # After two tokens the first request has the id with which only it fails.
        failed, after, other = converse(
            {"id": 1, "prompt_ids": [FAILS_ALONE - 2]},
            {"id": 2, "prompt_ids": [50]},
            {"id": 3, "prompt_ids": [60], "max_new_tokens": 4},
            engine=SlotsEngine(),
        )
        self.assertEqual((failed["id"], failed["kind"]), (1, "internal"))
        self.assertIn("ValueError: only this one", failed["message"])
        self.assertEqual((after["id"], len(ids(after)[0])), (3, 4))
        self.assertEqual((other["id"], len(ids(other)[0])), (2, 32))

    def test_a_step_of_several_tokens_ends_when_another_request_can_start_or_its_own_is_cancelled(self):
        first = {"id": 1, "prompt_ids": [9], "max_new_tokens": 30, "stream": True}
        lines_after = {
            # A request without an id waits for the others, so it ends no step.
            2: {"prompt_ids": [70], "max_new_tokens": 1},
            5: {"type": "cancel", "id": 1},
        }
        others = {3: {"id": 2, "prompt_ids": [50], "max_new_tokens": 2}, 8: {"type": "cancel", "id": 1}}
        for lines, steps, answered in [(lines_after, [[5]], [1, None]), (others, [[3], [4, 1], [5, 2], [7]], [2, 1])]:

            def send(conversation, lines=lines, count=len(answered)):
                messages = conversation.messages
                if messages[-1]["type"] == "token" and (line := lines.get(len(messages))):
                    conversation.send(line)
                if [message["type"] for message in messages].count("generated") == count:
                    conversation.send({"type": "shutdown"})

            with unittest.mock.patch("toy_engine.SlotsModel", LongStepsModel), unittest.mock.patch.object(LongStepsModel, "steps", []):
                conversation = InMemoryConversation(SlotsEngine(), after_write=send)
                conversation.send(first)
                conversation.conversation.run()
                self.assertEqual(LongStepsModel.steps, steps)
            answers = [message for message in conversation.messages if message["type"] == "generated"]
            self.assertEqual([answer.get("id") for answer in answers], answered)
            cancelled = next(answer for answer in answers if answer.get("id") == 1)
            self.assertEqual(cancelled["iterations"][0]["sequences"][0]["finish"], "cancelled")

    def test_the_next_iteration_of_a_request_begins_after_the_answers_to_others(self):
        engine = SlotsEngine()
        second, first = converse(
            {"id": 1, "prompt_ids": [9], "max_new_tokens": 2, "iterations": 2},
            {"id": 2, "prompt_ids": [50], "max_new_tokens": 2},
            engine=engine,
        )
        self.assertEqual((second["id"], first["id"]), (2, 1))
        # The kit reads the facts for each answer.
        self.assertEqual(engine.calls[-6:], ["leave", "leave", "facts", "admit", "leave", "facts"])

    def test_a_request_that_cannot_leave_its_slot_fails(self):
        failed, after = converse(
            {"id": 1, "prompt_ids": [STAYS_IN_SLOT - 2], "max_new_tokens": 2},
            {"id": 2, "prompt_ids": [50]},
            engine=SlotsEngine(),
        )
        self.assertEqual((failed["id"], failed["kind"]), (1, "internal"))
        self.assertIn("RuntimeError: the slot is still in use", failed["message"])
        self.assertEqual((after["id"], after["type"]), (2, "generated"))

    def test_a_cancel_frees_the_slot(self):
        conversation = InMemoryConversation(SlotsEngine(), after_write=cancel_after(2))
        *_, cancelled, other = conversation.run(
            {"id": 1, "prompt_ids": [9], "stream": True, "iterations": 3}, {"id": 2, "prompt_ids": [50]}
        )
        self.assertEqual((cancelled["id"], cancelled["iterations"][-1]["sequences"][0]["finish"]), (1, "cancelled"))
        self.assertEqual((other["id"], len(ids(other)[0])), (2, 32))


class RequestClock(unittest.TestCase):
    def test_timestamps_count_from_the_arrival_of_a_request_that_waits_for_another(self):
        ticks = iter(range(0, 10**9, 10))
        conversation = InMemoryConversation(clock=lambda: next(ticks))
        for _ in range(2):
            conversation.inbox.put((-1000, b'{"prompt_ids":[9],"max_new_tokens":2}'))
        first, second = (answer["iterations"][0] for answer in conversation.run())
        self.assertGreaterEqual(first["start_ns"], 1000)
        self.assertGreater(second["start_ns"], first["end_ns"])
