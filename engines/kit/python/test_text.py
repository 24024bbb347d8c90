"""Tests prompts and answers in text: which requests open the tokenizer, and that no iteration includes its opening."""

import unittest

from engine_kit import Failed
from test_conversation import LOAD, InMemoryConversation, ids
from toy_engine import SlotsEngine, SlotsModel

# Opening the tokenizer advances the clock of a test by this time. Each call of the clock advances it by one nanosecond.
OPENING_NS = 1_000_000_000


class Clock:
    def __init__(self):
        self.now = 0

    def __call__(self):
        self.now += 1
        return self.now


class LazyEngine(SlotsEngine):
    """Its model opens the tokenizer for the first text. A broken tokenizer fails each time."""

    def __init__(self, clock, broken=False):
        super().__init__()
        self.clock, self.is_broken, self.openings, self.encoded = clock, broken, 0, []

    def load(self, request, phases):
        return LazyModel(request, self)


class LazyModel(SlotsModel):
    def __init__(self, request, engine):
        super().__init__(request, engine)
        self._engine, self._is_open = engine, False

    def encode(self, text):
        self._open()
        self._engine.encoded.append(text)
        return super().encode(text)

    def decode(self, ids):
        self._open()
        return super().decode(ids)

    def _open(self):
        if self._is_open:
            return
        self._engine.clock.now += OPENING_NS
        self._engine.openings += 1
        if self._engine.is_broken:
            raise Failed("model", "`tokenizer.json`: broken")
        self._is_open = True


def converse(*lines, broken=False):
    """The answers and the engine."""
    clock = Clock()
    conversation = InMemoryConversation(LazyEngine(clock, broken), clock=clock)
    return conversation.run(*lines), conversation.engine


def overlapping(requests):
    """The same requests with request ids, so that they overlap."""
    return [{**request, "id": id} for id, request in enumerate(requests)]


def texts(answer):
    return [sequence.get("text") for iteration in answer["iterations"] for sequence in iteration["sequences"]]


def durations(answer):
    """The nanoseconds of each iteration, warm-up first."""
    iterations = answer.get("warmup_iterations", []) + answer["iterations"]
    return [iteration["end_ns"] - iteration["start_ns"] for iteration in iterations]


class TokenizerOpenings(unittest.TestCase):
    def test_ids_need_no_tokenizer_even_if_it_is_broken(self):
        answers, engine = converse(
            LOAD, {"prompt_ids": [9]}, {"id": 1, "prompts_ids": [[9], [8]]}, {"type": "score", "sequences": [[1, 5]]}, broken=True
        )
        self.assertEqual([answer["type"] for answer in answers], ["loaded", "generated", "generated", "scored"])
        self.assertEqual(engine.openings, 0)

    def test_a_broken_tokenizer_fails_each_text_request_and_ids_still_work(self):
        requests_without_id = [{"prompt": "a"}, {"prompts": ["a", "b"]}, {"prompt_ids": [9]}]
        for requests in (requests_without_id, overlapping(requests_without_id)):
            answers, engine = converse(*requests, broken=True)
            self.assertEqual([answer["type"] for answer in answers], ["failed", "failed", "generated"])
            self.assertEqual([answer.get("id") for answer in answers], [request.get("id") for request in requests])
            for failed in answers[:2]:
                self.assertEqual((failed["kind"], failed["message"]), ("model", "`tokenizer.json`: broken"))
            self.assertEqual((engine.openings, len(ids(answers[2])[0])), (2, 32))

    def test_only_the_first_text_of_a_model_opens_its_tokenizer(self):
        _, engine = converse({"prompt": "a"}, {"id": 1, "prompt": "b"}, {"prompts": ["c", "d"]})
        self.assertEqual(engine.openings, 1)
        _, engine = converse(LOAD, {"prompt": "a"}, LOAD, {"prompt_ids": [9]}, LOAD, {"id": 1, "prompt": "a"})
        self.assertEqual(engine.openings, 2)

    def test_a_refused_request_opens_no_tokenizer(self):
        (failed,), engine = converse({"prompt": "a", "use_cache": False})
        self.assertEqual((failed["kind"], engine.openings), ("unsupported", 0))

    def test_opening_the_tokenizer_counts_in_no_iteration_and_no_warm_up(self):
        for id_field in ({}, {"id": 1}):
            (first, second), _ = converse(
                {**id_field, "prompt": "a", "warmup": 1, "iterations": 2, "max_new_tokens": 4}, {"prompt": "a", "max_new_tokens": 4}
            )
            self.assertLess(max(durations(first)), OPENING_NS)
            self.assertEqual(len(durations(first)), 3)
            self.assertGreater(first["warmup_iterations"][0]["start_ns"], OPENING_NS)
            self.assertEqual(durations(first)[0], durations(second)[0])

    def test_a_text_is_tokenised_once_for_each_iteration(self):
        _, engine = converse({"prompt": "words", "iterations": 2})
        # The kit opens the tokenizer with an empty text.
        self.assertEqual(engine.encoded, ["", "words", "words"])

    def test_opening_the_tokenizer_does_not_count_in_overlapping_requests(self):
        (with_ids, first, second), engine = converse(
            {"id": "ids", "prompt_ids": [9], "max_new_tokens": 20},
            {"id": "text", "prompt": "a", "max_new_tokens": 20},
            {"id": "more", "prompt": "b", "max_new_tokens": 20},
        )
        self.assertEqual([with_ids["id"], first["id"], second["id"]], ["ids", "text", "more"])
        self.assertLess(max(durations(with_ids) + durations(first) + durations(second)), OPENING_NS)
        # The first text waits until no request runs. Later texts overlap like ids.
        self.assertEqual((engine.openings, engine.taken_slots), (1, [1, 1, 2]))

    def test_a_failed_text_does_not_affect_running_requests(self):
        (first, failed, last), _ = converse(
            {"id": 1, "prompt_ids": [9]}, {"id": 2, "prompt": "a"}, {"id": 3, "prompt_ids": [50]}, broken=True
        )
        self.assertEqual([first["type"], failed["type"], last["type"]], ["generated", "failed", "generated"])
        self.assertLess(max(durations(first) + durations(last)), OPENING_NS)


class AnswersInText(unittest.TestCase):
    def test_an_answer_has_text_only_if_the_prompt_was_text(self):
        requests_without_id = [{"prompt": "a"}, {"prompt_ids": [9]}, {"prompts": ["b", "c"]}, {"prompts_ids": [[100], [101]]}]
        requests_without_id = [{**request, "max_new_tokens": 1} for request in requests_without_id]
        for requests in (requests_without_id, overlapping(requests_without_id)):
            answers, _ = converse(*requests)
            self.assertEqual([texts(answer) for answer in answers], [["b"], [None], ["c", "d"], [None, None]])

    def test_the_summary_has_text_only_if_the_prompt_was_text(self):
        for request, has_text in (({"prompt": "a"}, True), ({"prompt_ids": [100]}, False)):
            conversation = InMemoryConversation()
            conversation.run(request)
            self.assertEqual("wrote: " in conversation.summaries.getvalue(), has_text)

    def test_a_text_request_cancelled_before_its_start_needs_no_tokenizer(self):
        (_, cancelled), engine = converse(
            {"prompt_ids": [9]}, {"id": 2, "prompts": ["a", "b"]}, {"type": "cancel", "id": 2}, broken=True
        )
        self.assertEqual((cancelled["type"], texts(cancelled), engine.openings), ("generated", [None, None], 0))
        self.assertEqual({sequence["finish"] for sequence in cancelled["iterations"][0]["sequences"]}, {"cancelled"})
