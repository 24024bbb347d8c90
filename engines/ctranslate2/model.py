"""A loaded model: tokens, scores, facts. The library's object `Generator` computes in threads of its own."""

from engine_kit import Model, check_logit
from model_folder import FolderTokenizerMixin


def text_of(ids):
    """The texts of tokens, in the vocabulary that `convert.py` writes."""
    return [str(id) for id in ids]


class CTranslate2Model(FolderTokenizerMixin, Model):
    def __init__(self, folder, generator, facts):
        self._folder, self._generator, self._facts = folder, generator, facts
        self._embedding_rows = folder.vocabulary_size

    def facts(self):
        return dict(self._facts)

    def generate(self, job, tokens):
        if not job.use_cache:
            return self._generate_without_cache(job, tokens)
        self._generate(job.prompts, job.max_new_tokens, tokens.push)

    def _generate(self, prompts, new_tokens, push):
        """Calls `push` with the number of the prompt and each new id. The sequence ends if `push` returns True."""
        self._generator.generate_batch(
            [text_of(prompt) for prompt in prompts],
            max_length=new_tokens,
            # No token has this id, so a sequence ends only by its length or by `push`.
            end_token=[self._folder.vocabulary_size],
            # The prompt is computed in one pass. With several prompts this is the length of the shortest.
            include_prompt_in_result=False,
            # The library calls this as soon as it has a token, and passes on any exception.
            callback=lambda step: push(step.batch_id, step.token_id),
        )

    def _generate_without_cache(self, job, tokens):
        """Computes every whole sequence again for every token."""
        sequences = [list(prompt) for prompt in job.prompts]
        while not tokens.all_done():
            active = [sequence for sequence in range(len(sequences)) if not tokens.is_done(sequence)]

            def push(number, id):
                sequences[active[number]].append(id)
                return tokens.push(active[number], id)

            self._generate([sequences[sequence] for sequence in active], 1, push)
            if tokens.cancelled:
                return

    def score(self, ids):
        (result,) = self._generator.score_batch([text_of(ids)], max_input_length=0)
        check_logit(sum(result.log_probs), self._folder.name)
        return list(result.log_probs)
