"""Texts and ids, by the vocabulary in the file."""

import llama_cpp.llama_cpp as bindings


class Text:
    def __init__(self, weights):
        self._weights, vocabulary = weights, weights.vocabulary
        known = lambda id: id if id >= 0 else None
        self.bos_id = known(bindings.llama_vocab_bos(vocabulary))
        ends = (known(bindings.llama_vocab_eos(vocabulary)), known(bindings.llama_vocab_eot(vocabulary)))
        self.eos_ids = list(dict.fromkeys(id for id in ends if id is not None))

    def encode(self, text):
        """Ids with the special tokens that the file adds; special tokens spelled in a text become their ids."""
        said = text.encode()
        room = len(said) + 8
        while True:
            ids = (bindings.llama_token * room)()
            count = bindings.llama_tokenize(self._weights.vocabulary, said, len(said), ids, room, True, True)
            if count >= 0:
                return list(ids[:count])
            room = -count

    def decode(self, ids):
        """Special tokens are left out, as in every tokenizer here."""
        known = (bindings.llama_token * len(ids))(*ids)
        room = 16 * len(ids) + 16
        while True:
            text = bindings.ctypes.create_string_buffer(room)
            count = bindings.llama_detokenize(self._weights.vocabulary, known, len(ids), text, room, True, False)
            if count >= 0:
                return text.raw[:count].decode("utf-8", "replace")
            room = -count
