"""The sequences of all requests that run at the same time. Requests join and leave between steps, and a step advances every
sequence. This module does not import llama.cpp's library."""

# The most requests that run at the same time, and the sequences of the context that they share.
CONCURRENCY = 8


class Sequence:
    """A sequence that is not done: the prompt `index` of the job in a slot, and a number in a context. The positions before
    `start` are computed. `ids` come next: the rest of the prompt, or the newest id. `choose(logits, index)` chooses an id."""

    def __init__(self, slot, index, job, choose, context, number):
        self.slot, self.index, self.job, self.choose = slot, index, job, choose
        self.context, self.number, self.start, self.ids = context, number, 0, job.prompts[index]


class Slots:
    """Admits requests, advances all of them by a step, and removes them."""

    def __init__(self, contexts):
        self._contexts = contexts
        # The sequences of each context in use, in the order of their numbers.
        self._groups = {}

    def admit(self, slot, job, choose):
        """Takes an iteration of a request, which joins at the next step."""
        context, numbers = self._place(job)
        group = self._groups.setdefault(context, [])
        group.extend(Sequence(slot, index, job, choose, context, number) for index, number in enumerate(numbers))
        group.sort(key=lambda it: it.number)

    def _place(self, job):
        """The context for a request, and the numbers of its sequences there.

        A request that begins alone has a context for itself. Those that begin while others run share a context, so that a step
        reads the weights once for all of them. A request that is too large for this context gets a context of its own."""
        count, positions = len(job.prompts), max(map(len, job.prompts)) + job.max_new_tokens
        if not self._groups:
            return self._contexts.empty_context(count, positions), range(count)
        taken = {it.number for it in self._groups.get(self._contexts.shared, ())}
        # llama.cpp divides a call at a gap between the numbers, so the lowest free numbers are taken.
        free = [number for number in range(CONCURRENCY) if number not in taken]
        if count <= len(free) and positions <= self._contexts.shared_positions:
            return self._contexts.shared_context(CONCURRENCY), free[:count]
        return self._contexts.own_context(count, positions), range(count)

    def step(self, tokens):
        """Advances every sequence by one token, or by a part of its prompt. `tokens` has the receiver of each slot. Each context
        in use makes one call."""
        for context, group in list(self._groups.items()):
            close_gaps(context, group)
            share = share_of([len(it.ids) for it in group if len(it.ids) > 1], context.pass_tokens)
            parts = []
            for it in group:
                ids = it.ids[:share]
                # Only the last id of a prompt needs logits.
                parts.append((it.number, it.start, ids, 1 if len(ids) == len(it.ids) else 0))
            logits = iter(context.compute(parts))
            # Sequences that are done leave the group.
            for sequence, (_, _, ids, is_complete) in zip(list(group), parts):
                sequence.start += len(ids)
                if is_complete:
                    self._add(sequence, sequence.choose(next(logits), sequence.index), tokens[sequence.slot])
                else:
                    sequence.ids = sequence.ids[len(ids) :]

    def _add(self, sequence, id, tokens):
        """Gives the next id of a sequence to its receiver. The sequence continues with this id, or is done."""
        if tokens.push(sequence.index, id):  # `push` returns whether the sequence is done
            self._remove(sequence)
        elif sequence.job.use_cache:
            sequence.ids = [id]
        else:
            # Without a cache, every token needs the whole sequence again.
            sequence.context.remove(sequence.number)
            sequence.start, sequence.ids = 0, sequence.job.prompts[sequence.index] + tokens.ids(sequence.index)

    def leave(self, slot):
        """Removes the sequences of a request that are not done."""
        for sequence in [it for group in self._groups.values() for it in group if it.slot == slot]:
            self._remove(sequence)

    def _remove(self, sequence):
        """Frees the positions of a sequence. A context of its own ends with its last sequence."""
        group = self._groups[sequence.context]
        group.remove(sequence)
        if not group:
            del self._groups[sequence.context]
        sequence.context.remove(sequence.number)


def close_gaps(context, group):
    """Gives the last sequences of a context the numbers of those that have left, because llama.cpp makes one pass more for each
    gap between the numbers."""
    for number in range(len(group)):
        if group[number].number != number:
            last = group.pop()
            group.insert(number, last)
            context.move(last.number, number)
            last.number = number


def share_of(lengths, total):
    """The most ids that each prompt may have in a step, so that all have at most `total`, which is a pass through the layers. The
    shares are equal, because a pass of llama.cpp has equally many ids of each sequence. So no prompt waits for a longer one."""
    left = total
    for index, length in enumerate(sorted(lengths)):
        share = left // (len(lengths) - index)
        if length > share:
            return share
        left -= length
    return total
