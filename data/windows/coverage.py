"""What of a corpus is in its tokens: unknown tokens, bytes that are spelled, and texts that do not round-trip."""

from data.store.store import TokenStore


def describe_coverage(store: TokenStore) -> str:
    """One line: the share of unknown tokens, and the share of the bytes of text that the tokens spell."""
    return (
        f"{store.unknown_fraction:.2%} of the corpus's tokens are unknown; "
        f"the tokens spell {store.bytes_covered():.2%} of its bytes"
    )


def coverage_warnings(store: TokenStore) -> list[str]:
    """Warnings, one line each, about unknown tokens and about sampled texts that decoding does not restore."""
    warnings, changed = [], store.meta["changed_texts"]
    if store.meta["num_unknown"]:
        warnings.append(
            f"{store.unknown_fraction:.2%} of the corpus's tokens are unknown (unk), and their bytes are not in "
            "bits per byte: use a tokenizer with byte fallback, which python -m data.train_tokenizer trains "
            "(docs/tokenizers.md)"
        )
    if changed:
        text, decoded = changed[0]
        warnings.append(
            f"the tokenizer changes {len(changed)} of {store.meta['sampled_texts']} sampled texts, such as {text!r} to "
            f"{decoded!r}: use one that loses no text, which python -m data.train_tokenizer trains (docs/tokenizers.md)"
        )
    return warnings
