"""Reads the library's responses in a separate thread, whose event loop runs from the load to the end.

The library keeps every response, but wakes its reader only while the reader's loop runs. A response that comes while the
loop is stopped waits for the next one, possibly forever. The thread timestamps each response and passes it to the main
thread through a queue. If the main thread is busy, it handles a response later, but the timestamp stays right.
"""

import asyncio
import concurrent.futures
import queue
import sys
import threading
import time
from types import SimpleNamespace

import library

# The interval at which the main thread, while it waits, checks the worker processes.
CHECK_INTERVAL_S = 1.0
# The time for an aborted request to end inside the library.
ABORT_TIMEOUT_S = 10.0
# After this time a thread yields the interpreter to a waiting thread. Python's default, 5 ms, is as long as a short ITL.
SWITCH_INTERVAL_S = 0.0005
# The time for the loop to end.
STOP_TIMEOUT_S = 1.0


class Reader:
    def __init__(self, llm):
        self._llm, self._responses = llm, queue.SimpleQueue()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="reader", daemon=True)
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        self._thread.start()

    # Methods for the main thread.

    def submit(self, sequences, params, check):
        """Submits the sequences. `take` returns their responses. `check`: see `_run`."""
        self._run(self._submit(sequences, params), check)

    def take(self):
        """Returns all responses so far, oldest first, as pairs (sequence, response). In place of a response a pair may have
        the error that ended the sequence, or None if no final response came. Waits up to a second for the first pair; if
        none comes, the list is empty."""
        responses = []
        try:
            responses.append(self._responses.get(timeout=CHECK_INTERVAL_S))
            while True:
                responses.append(self._responses.get_nowait())
        except queue.Empty:
            return responses

    def abort(self, sequences, timeout_s=ABORT_TIMEOUT_S):
        """Aborts the running sequences, and waits until they have ended inside the library too."""
        self._run(self._abort(sequences, timeout_s), lambda: None)

    def context_logits(self, ids, end_id, check):
        return self._run(library.context_logits(self._llm, ids, end_id), check)

    def close(self):
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(STOP_TIMEOUT_S)
        if not self._thread.is_alive():
            self._loop.close()

    def _run(self, coroutine, check):
        """Runs a coroutine in the loop. Calls `check` at intervals while it waits; `check` may raise."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            while not concurrent.futures.wait([future], CHECK_INTERVAL_S).done:
                check()
            return future.result()
        except Exception as error:
            future.cancel()
            raise library.failure(error, library.GENERATING) from error

    # Coroutines of the loop's thread.

    async def _submit(self, sequences, params):
        for sequence in sequences:
            sequence.result = library.submit(self._llm, sequence.prompt, params)
            sequence.reader_task = asyncio.ensure_future(self._collect(sequence))

    async def _collect(self, sequence):
        """Puts the responses of one sequence into the queue."""
        finish_reason = None
        try:
            async for ids, finish_reason, stop_id in library.responses(sequence.result):
                at_ns = time.perf_counter_ns()
                cached = None if finish_reason is None else library.cached_tokens(sequence.result)
                response = SimpleNamespace(
                    at_ns=at_ns, ids=ids, finish_reason=finish_reason, stop_id=stop_id, cached_tokens=cached
                )
                self._responses.put((sequence, response))
        except Exception as error:
            self._responses.put((sequence, error))
            return
        if finish_reason is None:
            self._responses.put((sequence, None))

    async def _abort(self, sequences, timeout_s):
        tasks = [sequence.reader_task for sequence in sequences if sequence.reader_task is not None]
        for sequence in sequences:
            if sequence.reader_task is not None and not sequence.reader_task.done():
                library.abort(sequence.result)
        if tasks:
            _, late_tasks = await asyncio.wait(tasks, timeout=timeout_s)
            for task in late_tasks:
                task.cancel()
            # Waits for the cancelled tasks too. Exceptions of aborted sequences do not matter.
            await asyncio.gather(*tasks, return_exceptions=True)
