"""The requests that run at the same time on the paths `generate` and `loop`.

A request alone takes the steps of its path, and nothing else. When others join, all of them become rows of one growing cache. A step
of the network advances every row. Requests join and leave between steps.
"""

import inspect
from collections import deque

import torch
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from decode_path import TokenChooser, make_batch, work_of
from devices import explain_memory_errors
from growing_cache import GrowingCacheSteps, WholeSequenceSteps, new_cache
from network import layer_kinds
from options import CONCURRENCY


class Row:
    """A sequence in the shared cache: `index` is its number in the job of a slot. `id` is its newest token, which is not in the
    cache yet."""

    def __init__(self, slot, index, chooser, id=None):
        self.slot, self.index, self.chooser, self.id = slot, index, chooser, id


class Overlapping:
    """Lets requests of a path overlap. This class comes before the class of the path among the base classes."""

    overlap = f"{CONCURRENCY}, as rows of one growing cache"

    def __init__(self, loaded):
        super().__init__(loaded)
        # The jobs that have not begun, as pairs of slot and job, and the jobs without a cache: slot -> (job, chooser).
        self._joining, self._uncached = deque(), {}
        # The rows, in the order of the cache of `_steps`; None without rows.
        self._rows, self._steps = [], None

    def admit(self, slot, job):
        """Takes a job, which begins in one of the next steps."""
        self.check_job(job)
        self._joining.append((slot, job))

    @torch.no_grad()
    def step(self, tokens):
        """Advances every sequence by one token, and begins one job. A job alone advances until another one joins."""
        if len(self._joining) == 1 and not self._rows and not self._uncached:
            slot, job = self._joining.popleft()
            unfinished = self.generate(job, tokens[slot])
            if unfinished is not None:
                self._continue(slot, job, tokens[slot], unfinished)
            return
        work = f"a step of {len(self._rows)} sequences in one cache"
        with explain_memory_errors(work, self.device), self.restrict_attention():
            if self._rows:
                logits = self._steps.advance(torch.tensor([row.id for row in self._rows], device=self.device))
                self._keep(push_next(self._rows, logits, tokens))
            for slot, (job, chooser) in list(self._uncached.items()):
                self._advance_uncached(slot, job, tokens[slot], chooser)
        if self._joining:
            slot, job = self._joining.popleft()
            try:
                with explain_memory_errors(work_of(job), self.device), self.restrict_attention():
                    self._begin(slot, job, tokens[slot])
            except Exception as error:
                # The other jobs are not affected.
                tokens[slot].fail(error)

    def leave(self, slot):
        """Removes the sequences of a slot that are not done."""
        self._joining = deque(pair for pair in self._joining if pair[0] != slot)
        self._uncached.pop(slot, None)
        self._keep([number for number, row in enumerate(self._rows) if row.slot != slot])

    def _continue(self, slot, job, receiver, unfinished):
        """Takes over a job whose step ended before all its tokens."""
        if unfinished.steps is None:
            self._uncached[slot] = job, unfinished.chooser
            return
        indexes = unfinished_sequences(job, receiver)
        if len(indexes) < len(job.prompts):
            unfinished.steps.keep(indexes)
        self._join([Row(slot, index, unfinished.chooser, receiver.ids(index)[-1]) for index in indexes], unfinished.steps)

    def _begin(self, slot, job, receiver):
        """Computes the prompts of a job in a cache of its own, which then joins the others'."""
        chooser = TokenChooser(job, receiver)
        if job.speculation != "off":
            # Other requests use the passes in which a request alone verifies drafts.
            receiver.set_drafts(0, 0, 0)
        if not job.use_cache:
            self._uncached[slot] = job, chooser
            self._advance_uncached(slot, job, receiver, chooser)
            return
        steps = GrowingCacheSteps(self.network)
        logits = steps.prefill(make_batch(job.prompts, job.padding, self.device))
        self.check_finite(logits)
        rows = [Row(slot, index, chooser) for index in range(len(job.prompts))]
        remaining = push_next(rows, logits, {slot: receiver})
        if remaining and len(remaining) < len(rows):
            steps.keep(remaining)
        self._join([rows[number] for number in remaining], steps)

    def _join(self, rows, steps):
        if rows and self._rows:
            self._steps.append(steps)
        elif rows:
            self._steps = steps
        self._rows += rows

    def _keep(self, numbers):
        """Removes all rows but those with these numbers."""
        if len(numbers) == len(self._rows):
            return
        self._rows = [self._rows[number] for number in numbers]
        if self._rows:
            self._steps.keep(numbers)
        else:
            self._steps = None

    def _advance_uncached(self, slot, job, receiver, chooser):
        """Computes the whole sequences of a job without a cache."""
        indexes = unfinished_sequences(job, receiver)
        batch = make_batch([job.prompts[index] + receiver.ids(index) for index in indexes], job.padding, self.device)
        logits = WholeSequenceSteps(self.network).prefill(batch)
        if not receiver.ids(indexes[0]):
            self.check_finite(logits)
        if not push_next([Row(slot, index, chooser) for index in indexes], logits, {slot: receiver}):
            del self._uncached[slot]


def unfinished_sequences(job, receiver):
    return [index for index in range(len(job.prompts)) if not receiver.is_done(index)]


def push_next(rows, logits, tokens):
    """Gives each row its next id by its logits [rows, vocabulary]. `tokens` has the receiver of each slot. Returns the numbers of the
    rows that are not done."""
    ids, remaining = logits.argmax(-1).tolist(), []
    for number, row in enumerate(rows):
        row.id = row.chooser.sample(row.index, logits[number].float().tolist()) if row.chooser.is_sampling else ids[number]
        if not tokens[row.slot].push(row.index, row.id):
            remaining.append(number)
    return remaining


def reason_for_single_requests(network, attention, device):
    """The reason why requests of this network cannot be rows of one cache; None if they can."""
    config = network.config.get_text_config(decoder=True)
    try:
        layers = new_cache(network).layers
    except Exception:
        # The library uses the values of a config unchecked, and some networks have a cache of another class.
        layers = [None]
    if any(type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer) for layer in layers):
        return "a layer keeps something else than the keys and values of its tokens"
    if "chunked_attention" in layer_kinds(config):
        return "its layers attend to chunks, which begin at the first column"
    if not {"attention_mask", "position_ids"} <= set(inspect.signature(network.forward).parameters):
        return "it takes no positions beside the ids"
    if any(kind == "longrope" or "dynamic" in kind for kind in rotation_kinds(network)):
        return "its rotations depend on the longest sequence of a batch"
    if attention == "flash" and device.type == "cuda":
        return "PyTorch's flash kernel takes no pads on CUDA"
    return None


def rotation_kinds(network):
    """The kinds of rotary positions of a network. Some have a kind for each kind of layer."""
    kinds = set()
    for module in network.modules():
        found = getattr(module, "rope_type", None)
        kinds.update(found.values() if isinstance(found, dict) else [found])
    return kinds - {None}
