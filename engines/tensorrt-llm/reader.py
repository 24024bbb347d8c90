"""Reads the library's answers in a separate thread with an event loop that always runs.

The library keeps every response, but wakes its reader only while the reader's loop runs; other responses wait until the
next one, or forever. So the loop runs from the load to the end. That thread timestamps each response and passes it
through a queue to the main thread. The main thread may be writing lines: this delays its work on a token, but not the
token's timestamp.
"""

import asyncio
import concurrent.futures
import queue
import sys
import threading
import time
from types import SimpleNamespace

import library
import errors

# The interval of the checks by a waiting thread.
CHECK_S = 1.0
# The time for an aborted request to end inside the library.
END_S = 10.0
# The interpreter's switch interval. Python's default of 5 ms is many tokens, and no computation here needs
# longer turns.
SWITCH_S = 0.0005
# The time for the loop to end.
STOP_S = 1.0


class Reader:
    def __init__(self, llm):
        self._llm, self._results = llm, queue.SimpleQueue()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="reader", daemon=True)
        sys.setswitchinterval(SWITCH_S)
        self._thread.start()

    # Methods for the main thread.

    def begin(self, flows, params, check):
        """Submits the flows. `take` returns their results."""
        self._do(self._begin(flows, params), check)

    def take(self):
        """All results so far, oldest first, as (flow, result). The result is a response, an error that ended the flow, or
        None if it ended without a response. Waits a moment for the first, and returns an empty list if none comes."""
        results = []
        try:
            results.append(self._results.get(timeout=CHECK_S))
            while True:
                results.append(self._results.get_nowait())
        except queue.Empty:
            return results

    def end(self, flows, timeout_s=END_S):
        """Aborts the running flows, and waits until they have ended inside the library too."""
        self._do(self._end(flows, timeout_s), lambda: None)

    def context_logits(self, ids, end_id, check):
        return self._do(library.context_logits(self._llm, ids, end_id), check)

    def close(self):
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(STOP_S)
        if not self._thread.is_alive():
            self._loop.close()

    def _do(self, coroutine, check):
        """Runs a coroutine in the loop. Calls `check` at intervals while it waits; `check` may raise."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            while not concurrent.futures.wait([future], CHECK_S).done:
                check()
            return future.result()
        except Exception as error:
            future.cancel()
            raise errors.failure(error, errors.GENERATING) from error

    # Coroutines of the loop's thread.

    async def _begin(self, flows, params):
        for flow in flows:
            flow.result = library.submit(self._llm, flow.prompt, params)
            flow.task = asyncio.ensure_future(self._follow(flow))

    async def _follow(self, flow):
        """Collects the results of one sequence in order."""
        ended = None
        try:
            async for ids, ended, stop in library.responses(flow.result):
                at_ns = time.perf_counter_ns()
                cached = None if ended is None else library.cached_tokens(flow.result)
                self._results.put((flow, SimpleNamespace(at_ns=at_ns, ids=ids, ended=ended, stop=stop, cached=cached)))
        except Exception as error:
            self._results.put((flow, error))
            return
        if ended is None:
            self._results.put((flow, None))

    async def _end(self, flows, timeout_s):
        tasks = [flow.task for flow in flows if flow.task is not None]
        for flow in flows:
            if flow.task is not None and not flow.task.done():
                library.abort(flow.result)
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=timeout_s)
            for task in late:
                task.cancel()
            # Their results were handled, or are not needed any more.
            await asyncio.gather(*tasks, return_exceptions=True)
