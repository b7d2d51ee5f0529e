"""The published shapes have the published numbers of parameters, counted without allocating parameters."""

import math
import types

import pytest

from configs import architectures
from configs.base import get_config
from huggingface.families import FAMILIES
from models.config import ModelConfig
from tests.models import tiny


def build(shape, vocab_size, max_length=1, **changes):
    other = {"max_length": max_length, "dtype": "float32", "remat": "none", "scan_unroll": 1, "attention": "auto"}
    return ModelConfig(**{**shape, **changes}, **other, vocab_size=vocab_size)


def count(*args, **changes):
    return sum(math.prod(shape) for shape in tiny.shapes(build(*args, **changes)).values())


def test_every_shape_sets_all_fields_that_define_a_model():
    fields = set(get_config().model) - {"remat", "scan_unroll", "attention", "vocab_size", "max_length"}
    families = (
        "T5_V1_1",
        "T5_V1_0",
        "UL2",
        "BERT",
        "ROBERTA",
        "ELECTRA",
        "BART",
        "GPT2",
        "LLAMA",
        "LLAMA2",
        "ENCODERS",
    )
    for family in families:
        for shape in getattr(architectures, family).values():
            assert set(shape) == fields


T5_VOCABULARY, BERT_VOCABULARY, BART_VOCABULARY = 32128, 30522, 50265
# Family, size, vocabulary, learned positions, parameters. Where authors round theirs, the number is added up by hand:
# BERT, RoBERTa and BART: words, positions and norm of the embeddings; in each layer 4 (d^2 + d) of attention, 2 d f +
# f + d of the feed-forward block and 2 d of each norm; the head's dense layer, norm and output bias. fairseq has two
# more rows of positions.
PUBLISHED = [
    ("GPT2", "small", 50257, 1024, 124439808),
    ("GPT2", "medium", 50257, 1024, 354823168),
    ("GPT2", "large", 50257, 1024, 774030080),
    ("GPT2", "xl", 50257, 1024, 1557611200),
    ("LLAMA", "7b", 32000, 1, 6738415616),
    ("LLAMA", "13b", 32000, 1, 13015864320),
    ("LLAMA2", "70b", 32000, 1, 68976648192),
    ("BERT", "base", BERT_VOCABULARY, 512, 109512762),
    ("BERT", "large", BERT_VOCABULARY, 512, 335172410),
    ("ROBERTA", "base", BART_VOCABULARY, 512, 124695129),
    ("ROBERTA", "large", BART_VOCABULARY, 512, 355408985),
    ("BART", "base", BART_VOCABULARY, 1024, 139417344),
    ("BART", "large", BART_VOCABULARY, 1024, 406287360),
]


@pytest.mark.parametrize(("family", "size", "vocab_size", "max_length", "parameters"), PUBLISHED)
def test_published_numbers(family, size, vocab_size, max_length, parameters):
    assert count(getattr(architectures, family)[size], vocab_size, max_length=max_length) == parameters


@pytest.mark.parametrize(
    ("family", "size", "parameters", "rounding"),
    [
        ("T5_V1_1", "small", 77.0e6, 0.05e6),
        ("T5_V1_1", "base", 247.6e6, 0.05e6),
        ("T5_V1_1", "large", 783.2e6, 0.05e6),
        ("T5_V1_1", "xl", 2.850e9, 0.0005e9),
        ("T5_V1_1", "xxl", 11.135e9, 0.0005e9),
        ("T5_V1_0", "small", 60.5e6, 0.05e6),
        ("T5_V1_0", "base", 222.9e6, 0.05e6),
        ("T5_V1_0", "large", 737.7e6, 0.05e6),
        ("T5_V1_0", "3b", 2.852e9, 0.0005e9),
        ("T5_V1_0", "11b", 11.307e9, 0.0005e9),
        ("UL2", "20b", 19.59e9, 0.005e9),
    ],
)
def test_t5(family, size, parameters, rounding):
    number = count(getattr(architectures, family)[size], T5_VOCABULARY)
    assert number == pytest.approx(parameters, rel=0, abs=rounding)


HEAD_DIMS = {"T5_V1_0": {"3b": 128, "11b": 128}, "UL2": {"20b": 256}, "MASS": {"base": 128}}
HEAD_DIMS |= {"LLAMA": dict.fromkeys(("7b", "13b"), 128), "LLAMA2": {"70b": 128}}
FAMILIES_OF_64 = ("T5_V1_1", "T5_V1_0", "BERT", "ROBERTA", "ENCODERS", "ELECTRA", "BART", "PEGASUS", "GPT2")


@pytest.mark.parametrize("family", sorted({*HEAD_DIMS, *FAMILIES_OF_64}))
def test_the_width_of_a_head_which_the_number_of_parameters_does_not_show(family):
    for size, shape in getattr(architectures, family).items():
        assert shape["head_dim"] == HEAD_DIMS.get(family, {}).get(size, 64), size


def test_the_epsilon_of_the_authors_norms():
    """BERT's code has 1e-12, fairseq, GPT-2 and Llama 2 have 1e-5, T5 and Llama 1e-6."""
    expected = {"BERT": 1e-12, "ELECTRA": 1e-12, "ROBERTA": 1e-5, "BART": 1e-5, "GPT2": 1e-5, "LLAMA2": 1e-5}
    expected |= {"T5_V1_0": 1e-6, "T5_V1_1": 1e-6, "LLAMA": 1e-6}
    for family, epsilon in expected.items():
        assert {shape["norm_epsilon"] for shape in getattr(architectures, family).values()} == {epsilon}, family


def test_the_discriminator_of_electra_small():
    embeddings = (BERT_VOCABULARY + 512 + 2) * 128  # words, positions, norm
    layer = 4 * (256 * 256 + 256) + 4 * 256 + (256 * 1024 + 1024) + (1024 * 256 + 256)
    expected = embeddings + (128 * 256 + 256) + 12 * layer
    shape = architectures.ELECTRA["small"]
    assert count(shape, BERT_VOCABULARY, max_length=512, predicts_tokens=False) == expected == 13482752


MODERN_BERT = sorted(architectures.ENCODERS.keys() - {"neobert_base"})


@pytest.mark.parametrize("name", MODERN_BERT)
def test_modernbert_has_the_parameters_of_the_class_of_transformers(name):
    """And one norm more, of layer 0, which nothing reads."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    vocab_size = 256000 if name.startswith("mmbert") else 50368
    model = build(architectures.ENCODERS[name], vocab_size)
    ids = dict.fromkeys(("pad", "cls", "sep", "bos", "eos"), 0)
    options = FAMILIES["ModernBertForMaskedLM"].huggingface_config(model, types.SimpleNamespace(**ids))
    with torch.device("meta"):
        theirs = transformers.ModernBertForMaskedLM(transformers.ModernBertConfig(**options))
    assert count(architectures.ENCODERS[name], vocab_size) == theirs.num_parameters() + model.d_model


def test_neobert():
    layer = 4 * 768 * 768 + 3 * 768 * 2048 + 2 * 768
    assert (
        count(architectures.ENCODERS["neobert_base"], BERT_VOCABULARY) == 2 * BERT_VOCABULARY * 768 + 28 * layer + 768
    )


def test_the_table_of_the_shapes_has_the_numbers_of_todays_encoders():
    sizes = {"mmbert": 256000, "neobert": BERT_VOCABULARY}
    for name, shape in architectures.ENCODERS.items():
        number = count(shape, sizes.get(name.partition("_")[0], 50368)) / 1e6
        assert f"{number:.1f}M" in architectures.__doc__ or f"{number / 1e3:.2f}B" in architectures.__doc__, (
            name,
            number,
        )
