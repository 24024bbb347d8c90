"""The tokenizer of a model folder, by the library that TensorRT-LLM itself stands on."""

from engine_kit import Failed


def read_tokenizer(folder):
    """None where the folder has none, or where this Python has no `tokenizers`: ids need neither."""
    if folder.tokenizer is None:
        return None
    try:
        from tokenizers import Tokenizer
    except ImportError:
        return None
    try:
        tokenizer = Tokenizer.from_file(str(folder.tokenizer))
    except Exception as error:
        # It raises nothing narrower.
        raise Failed("model", f"`{folder.tokenizer}`: {error}") from None
    # A prompt is measured at the length it has.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
