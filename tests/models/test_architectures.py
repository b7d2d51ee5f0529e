"""The published shapes have the published numbers of parameters, counted without allocating parameters."""

import math

import pytest

from configs import architectures
from configs.base import get_config
from models.config import ModelConfig
from tests.models import tiny


def build(shape, vocab_size, max_length=1, **changes):
    other = {"max_length": max_length, "dtype": "float32", "remat": "none", "scan_unroll": 1, "attention": "auto"}
    return ModelConfig(**{**shape, **changes}, **other, vocab_size=vocab_size)


def count(*args, **changes):
    return sum(math.prod(shape) for shape in tiny.shapes(build(*args, **changes)).values())


def test_every_shape_sets_all_fields_that_define_a_model():
    fields = set(get_config().model) - {"remat", "scan_unroll", "attention", "vocab_size", "max_length"}
    for family in ("T5_V1_1", "T5_V1_0", "UL2", "BERT", "ROBERTA", "ELECTRA", "BART", "GPT2", "LLAMA", "LLAMA2"):
        for shape in getattr(architectures, family).values():
            assert set(shape) == fields


@pytest.mark.parametrize(
    "family, size, parameters",
    [
        ("T5_V1_1", "base", "247.6M"),
        ("T5_V1_1", "xxl", "11.135B"),
        ("T5_V1_0", "base", "222.9M"),
        ("T5_V1_0", "11b", "11.307B"),
    ],
)
def test_t5(family, size, parameters):
    number = count(getattr(architectures, family)[size], 32128)
    assert parameters == (f"{number / 1e6:.1f}M" if number < 1e9 else f"{number / 1e9:.3f}B")


@pytest.mark.parametrize(
    "size, parameters", [("small", 124439808), ("medium", 354823168), ("large", 774030080), ("xl", 1557611200)]
)
def test_gpt2(size, parameters):
    assert count(architectures.GPT2[size], 50257, max_length=1024) == parameters


@pytest.mark.parametrize(
    "family, size, parameters",
    [("LLAMA", "7b", 6738415616), ("LLAMA", "13b", 13015864320), ("LLAMA2", "70b", 68976648192)],
)
def test_llama(family, size, parameters):
    assert count(getattr(architectures, family)[size], 32000) == parameters


@pytest.mark.parametrize(
    "size, n, d, f, parameters", [("base", 12, 768, 3072, 109512762), ("large", 24, 1024, 4096, 335172410)]
)
def test_bert(size, n, d, f, parameters):
    embeddings = 30522 * d + 512 * d + 2 * d  # words, positions, norm
    layer = 4 * (d * d + d) + 2 * d + (d * f + f) + (f * d + d) + 2 * d
    head = (d * d + d) + 2 * d + 30522  # dense, norm, output bias; the output table is that of the words
    assert embeddings + n * layer + head == parameters
    assert count(architectures.BERT[size], 30522, max_length=512) == parameters


def test_electra_small():
    embeddings = (30522 + 512 + 2) * 128  # words, positions, norm
    layer = 4 * (256 * 256 + 256) + 4 * 256 + (256 * 1024 + 1024) + (1024 * 256 + 256)
    assert embeddings + (128 * 256 + 256) + 12 * layer == 13482752
    assert count(architectures.ELECTRA["small"], 30522, max_length=512, predicts_tokens=False) == 13482752


@pytest.mark.parametrize(
    "size, n, d, f, parameters", [("base", 12, 768, 3072, 124695129), ("large", 24, 1024, 4096, 355408985)]
)
def test_roberta(size, n, d, f, parameters):
    embeddings = 50265 * d + 512 * d + 2 * d  # words, positions, norm; fairseq has two more rows of positions
    layer = 4 * (d * d + d) + 2 * d + (d * f + f) + (f * d + d) + 2 * d
    assert embeddings + n * layer + (d * d + d) + 2 * d + 50265 == parameters
    assert count(architectures.ROBERTA[size], 50265, max_length=512) == parameters


@pytest.mark.parametrize(
    "size, n, d, f, parameters", [("base", 6, 768, 3072, 139417344), ("large", 12, 1024, 4096, 406287360)]
)
def test_bart(size, n, d, f, parameters):
    stacks = 2 * (1024 * d + 2 * d)  # of each stack: positions and norm; fairseq has two more rows of positions
    attention = 4 * (d * d + d) + 2 * d
    mlp = (d * f + f) + (f * d + d) + 2 * d
    assert 50265 * d + stacks + n * (3 * attention + 2 * mlp) == parameters
    assert count(architectures.BART[size], 50265, max_length=1024) == parameters
