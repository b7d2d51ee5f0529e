"""An experiment, and a row written by hand, for the tests of train.show."""

import pytest

from tests.show.batches import encoder_decoder_chunk
from tests.train.tiny_experiments import tiny_experiment


@pytest.fixture(scope="session")
def ul2():
    return tiny_experiment("ul2", "encoder_decoder")


@pytest.fixture(scope="session")
def two_examples(ul2):
    """An R example and an S example in one row."""
    return encoder_decoder_chunk(
        ul2.tokenizer,
        raw=["ab\ncd", "x\tyz"],
        inputs=["[R]a<extra_id_0>d</s>", "[S]x</s>"],
        targets=["<extra_id_0>b\nc</s>", "\tyz</s>"],
    )
