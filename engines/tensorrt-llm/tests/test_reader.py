"""Tests the reader alone: the time of its timestamps, and sequences that end without a result."""

import sys
import time
import unittest
from types import SimpleNamespace

from support import TIMEOUT_S, PROMPT, STAND_IN

from reader import Reader


class Nothing:
    """A request without any result."""

    def __aiter__(self):
        return self

    async def __anext__(self):
        raise StopAsyncIteration


class Llm:
    """Gives no answers by itself: the test does."""

    def generate_async(self, inputs, sampling_params, streaming):
        if not inputs:
            return Nothing()
        sys.path.append(str(STAND_IN))
        try:
            from tensorrt_llm.llmapi import RequestOutput
        finally:
            sys.path.remove(str(STAND_IN))
        return RequestOutput(inputs)


class Reading(unittest.TestCase):
    def setUp(self):
        self.reader = Reader(Llm())
        self.addCleanup(self.reader.close)
        self.flow = SimpleNamespace(prompt=PROMPT, task=None)
        self.reader.begin([self.flow], None, lambda: None)
        self.addCleanup(lambda: self.reader.end([self.flow], 0))

    def until_waiting(self, count):
        """Waits until this many results are in the queue."""
        deadline = time.monotonic() + TIMEOUT_S
        while self.reader._results.qsize() < count:
            self.assertLess(time.monotonic(), deadline, "nothing came")
            time.sleep(0.001)

    def test_a_token_has_the_time_of_the_librarys_response(self):
        times = [time.perf_counter_ns()]
        for id in (7, 8, 9):
            self.flow.result.put(ids=[id], reason="length" if id == 9 else None)
            self.until_waiting(id - 6)
            times.append(time.perf_counter_ns())
        news = [news for _, news in self.reader.take()]
        self.assertEqual([item.ids for item in news], [[7], [8], [9]])
        for item, before, after in zip(news, times, times[1:]):
            self.assertTrue(before < item.at_ns < after, (before, item.at_ns, after))

    def test_a_sequence_that_ends_without_a_response_is_reported(self):
        flow = SimpleNamespace(prompt=[], task=None)
        self.reader.begin([flow], None, lambda: None)
        self.assertEqual(self.receive(1), [(flow, None)])

    def test_an_error_of_the_library_is_passed_on(self):
        self.flow.result.put(error="CUDA error")
        ((flow, error),) = self.receive(1)
        self.assertEqual((flow, str(error)), (self.flow, "CUDA error"))

    def test_a_wait_without_results_returns(self):
        self.assertEqual(self.reader.take(), [])
        self.reader.end([self.flow], 0)
        self.assertTrue(self.flow.task.done())

    def receive(self, count):
        self.until_waiting(count)
        return self.reader.take()


if __name__ == "__main__":
    unittest.main()
