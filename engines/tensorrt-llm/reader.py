"""The library's answers, read in a thread of its own by an event loop that never stands still.

The library keeps every response, but tells its reader of it only while the reader's loop runs; what comes at another moment
waits until the next response, or for ever. So the loop runs from the load to the end. Each response is stamped in that
thread, and goes through a queue to the main thread, which may be writing lines meanwhile: that delays what it does with a
token, and not the token's time.
"""

import asyncio
import concurrent.futures
import queue
import sys
import threading
import time
from types import SimpleNamespace

import library
import trouble

# How often whoever waits here looks up, while nothing comes.
LOOK_S = 1.0
# How long a request that was given up may take to end inside the library.
END_S = 10.0
# How long a thread that wants the interpreter lets another one compute before it takes its turn. Python's own 5 ms are many
# tokens, and nothing of what is computed here gains by not being interrupted.
SWITCH_S = 0.0005
# How long the loop may take to end.
STOP_S = 1.0


class Reader:
    def __init__(self, llm):
        self._llm, self._came = llm, queue.SimpleQueue()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="reader", daemon=True)
        sys.setswitchinterval(SWITCH_S)
        self._thread.start()

    # For the main thread.

    def begin(self, flows, params, look):
        """Submits them. What comes of them comes out of `take`."""
        self._do(self._begin(flows, params), look)

    def take(self):
        """All that came, oldest first, as (flow, what): news; an error that ended the flow; or None where it ended without
        news of it. Waits for the first of it, and gives nothing where none came for a moment."""
        came = []
        try:
            came.append(self._came.get(timeout=LOOK_S))
            while True:
                came.append(self._came.get_nowait())
        except queue.Empty:
            return came

    def end(self, flows, patience_s=END_S):
        """Gives up those that still run, and waits until they are over inside the library too."""
        self._do(self._end(flows, patience_s), lambda: None)

    def context_logits(self, ids, end_id, look):
        return self._do(library.context_logits(self._llm, ids, end_id), look)

    def close(self):
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(STOP_S)
        if not self._thread.is_alive():
            self._loop.close()

    def _do(self, coroutine, look):
        """Runs it in the loop. `look` is called while that takes long, and may raise."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            while not concurrent.futures.wait([future], LOOK_S).done:
                look()
            return future.result()
        except Exception as error:
            future.cancel()
            raise trouble.explained(error, trouble.GENERATING) from error

    # In the loop's thread.

    async def _begin(self, flows, params):
        for flow in flows:
            flow.result = library.submit(self._llm, flow.prompt, params)
            flow.task = asyncio.ensure_future(self._follow(flow))

    async def _follow(self, flow):
        """Collects what comes of one sequence, in the order in which it comes."""
        ended = None
        try:
            async for ids, ended, stop in library.news(flow.result):
                at_ns = time.perf_counter_ns()
                cached = None if ended is None else library.cached_tokens(flow.result)
                self._came.put((flow, SimpleNamespace(at_ns=at_ns, ids=ids, ended=ended, stop=stop, cached=cached)))
        except Exception as error:
            self._came.put((flow, error))
            return
        if ended is None:
            self._came.put((flow, None))

    async def _end(self, flows, patience_s):
        tasks = [flow.task for flow in flows if flow.task is not None]
        for flow in flows:
            if flow.task is not None and not flow.task.done():
                library.abort(flow.result)
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=patience_s)
            for task in late:
                task.cancel()
            # What became of them was seen, or nobody asks any more.
            await asyncio.gather(*tasks, return_exceptions=True)
