"""Tests `Reader` without the rest of the engine: timestamps, errors, and sequences that end without a response."""

import sys
import time
import unittest
from types import SimpleNamespace

from support import TIMEOUT_S, PROMPT, STAND_IN

from reader import Reader


class EmptyResult:
    """The result of a request without responses."""

    def __aiter__(self):
        return self

    async def __anext__(self):
        raise StopAsyncIteration


class ManualLlm:
    """An `LLM` whose responses the test sends."""

    def generate_async(self, inputs, sampling_params, streaming):
        if not inputs:
            return EmptyResult()
        sys.path.append(str(STAND_IN))
        try:
            from tensorrt_llm.llmapi import RequestOutput
        finally:
            sys.path.remove(str(STAND_IN))
        return RequestOutput(inputs)


class ReaderTest(unittest.TestCase):
    def setUp(self):
        self.reader = Reader(ManualLlm())
        self.addCleanup(self.reader.close)
        self.sequence = SimpleNamespace(prompt=PROMPT, reader_task=None)
        self.reader.submit([self.sequence], params=None, check=lambda: None)
        self.addCleanup(lambda: self.reader.abort([self.sequence], timeout_s=0))

    def wait_for_responses(self, count):
        """Waits until the queue has this many responses."""
        deadline = time.monotonic() + TIMEOUT_S
        while self.reader._responses.qsize() < count:
            self.assertLess(time.monotonic(), deadline, "no response came")
            time.sleep(0.001)

    def test_a_timestamp_is_the_time_of_the_librarys_response(self):
        times = [time.perf_counter_ns()]
        for id in (7, 8, 9):
            self.sequence.result.put(ids=[id], reason="length" if id == 9 else None)
            self.wait_for_responses(len(times))
            times.append(time.perf_counter_ns())
        responses = [response for _, response in self.reader.take()]
        self.assertEqual([response.ids for response in responses], [[7], [8], [9]])
        for response, before, after in zip(responses, times, times[1:]):
            self.assertTrue(before < response.at_ns < after, (before, response.at_ns, after))

    def test_a_sequence_that_ends_without_a_response_is_reported(self):
        sequence = SimpleNamespace(prompt=[], reader_task=None)
        self.reader.submit([sequence], params=None, check=lambda: None)
        self.assertEqual(self.take_after_wait(1), [(sequence, None)])

    def test_an_error_of_the_library_is_passed_on(self):
        self.sequence.result.put(error="CUDA error")
        ((sequence, error),) = self.take_after_wait(1)
        self.assertEqual((sequence, str(error)), (self.sequence, "CUDA error"))

    def test_the_reader_returns_no_responses_if_there_are_none(self):
        self.assertEqual(self.reader.take(), [])
        self.reader.abort([self.sequence], timeout_s=0)
        self.assertTrue(self.sequence.reader_task.done())

    def take_after_wait(self, count):
        self.wait_for_responses(count)
        return self.reader.take()


if __name__ == "__main__":
    unittest.main()
