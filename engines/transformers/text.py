"""The tokenizer of a model folder, by the library that `transformers` itself uses."""

from engine_kit import Failed


def read_tokenizer(folder):
    """None where the folder has none: ids need no tokenizer, nor the library."""
    if folder.tokenizer is None:
        return None
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(folder.tokenizer))
    except Exception as error:
        # The library raises nothing narrower.
        raise Failed("model", f"`{folder.tokenizer}`: {str(error)[:300]}") from None
    largest = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=0)
    rows = folder.vocabulary_size
    if rows is not None and largest >= rows:
        what = f"its ids reach {largest}, and the embedding of model `{folder.name}` has {rows} rows"
        raise Failed("model", f"`{folder.tokenizer}` is another model's tokenizer: {what}")
    # A prompt is measured at the length it has.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
