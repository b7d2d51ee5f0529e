"""Models of `transformers` with random weights give the same logits and losses here, both ways."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("safetensors")

from huggingface.families import FAMILIES
from tests.huggingface import comparison
from tests.huggingface.comparison import MODELS, VOCAB, random_model

TOLERANCE = 1e-4
SMALL = {"num_hidden_layers": 2}
# Variants of MODELS: the model, and options that differ.
VARIANTS = {
    "UL2": ("t5_v1_1", dict(feed_forward_proj="gated-silu", num_layers=2)),
    "T5, shared table without scaled logits": ("t5_v1_0", dict(scale_decoder_outputs=False, num_layers=2)),
    "T5, gelu": ("t5_v1_0", dict(feed_forward_proj="gelu", num_layers=2)),
    "T5-Efficient, a shallow decoder": ("t5_v1_0", dict(num_layers=3, num_decoder_layers=1)),
    "T5 v1.1, a shallow encoder": ("t5_v1_1", dict(num_layers=1, num_decoder_layers=3)),
    "BERT, tanh GELU, own output table": ("bert", dict(hidden_act="gelu_new", tie_word_embeddings=False) | SMALL),
    "BERT, relu, one token type": ("bert", dict(hidden_act="relu", type_vocab_size=1) | SMALL),
    "RoBERTa, other padding, own output table": ("roberta", dict(pad_token_id=0, tie_word_embeddings=False) | SMALL),
    "GPT-2, own output table, unscaled": (
        "gpt2", dict(tie_word_embeddings=False, scale_attn_weights=False, n_inner=24, n_layer=2)),
    "Llama, shared table, wide heads, one key": (
        "llama", dict(tie_word_embeddings=True, num_key_value_heads=1, head_dim=12, rms_norm_eps=1e-5,
                      rope_parameters={"rope_type": "default", "rope_theta": 50.0}) | SMALL),
    "GPT-NeoX, one block after the other, shared table, all features rotate, tanh GELU": (
        "gpt_neox", dict(use_parallel_residual=False, tie_word_embeddings=True, hidden_act="gelu_new",
                         rope_parameters={"rope_theta": 50.0, "partial_rotary_factor": 1.0}) | SMALL),
    "Llama 3.1": (
        "llama", dict(rope_theta=50.0, rope_parameters={
            "rope_type": "llama3", "rope_theta": 50.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16}) | SMALL),
    "Qwen 2, shared table, wide heads, one key": (
        "qwen2", dict(tie_word_embeddings=True, num_key_value_heads=1, head_dim=12) | SMALL),
    "Qwen 3, shared table, one key": (
        "qwen3", dict(tie_word_embeddings=True, num_key_value_heads=1, rms_norm_eps=1e-5) | SMALL),
    "Gemma, GELU by its first name, own output table": (
        "gemma", dict(hidden_act="gelu", tie_word_embeddings=False, num_key_value_heads=1) | SMALL),
    "Gemma 2, without soft caps, every layer global, another base": (
        "gemma2", dict(attn_logit_softcapping=None, final_logit_softcapping=None, layer_types=["full_attention"] * 2,
                       rope_parameters={"rope_type": "default", "rope_theta": 50.0}) | SMALL),
    "Gemma 3, two kinds of wavelengths, a soft cap, the last layer local": (
        "gemma3", dict(num_hidden_layers=3, layer_types=["sliding_attention", "full_attention", "sliding_attention"],
                       final_logit_softcapping=3.0,
                       rope_parameters={"full_attention": {"rope_type": "default", "rope_theta": 50.0},
                                        "sliding_attention": {"rope_type": "default", "rope_theta": 7.0}})),
    "Gemma 3, every layer local": ("gemma3", dict(layer_types=["sliding_attention"] * 2) | SMALL),
    "T5Gemma, own output table": ("t5gemma", dict(tie_word_embeddings=False)),
    "ModernBERT, every layer global, own output table without a bias": (
        "modernbert", dict(layer_types=["full_attention"] * 2, tie_word_embeddings=False, decoder_bias=False) | SMALL),
    "ModernBERT, two kinds of wavelengths, SiLU": (
        "modernbert", dict(global_attn_every_n_layers=2, local_attention=9, hidden_activation="silu",
                           classifier_activation="silu", num_hidden_layers=4,
                           rope_parameters={"full_attention": {"rope_type": "default", "rope_theta": 50.0},
                                            "sliding_attention": {"rope_type": "default", "rope_theta": 7.0}})),
    "BART, relu": ("bart", dict(activation_function="relu", encoder_layers=2, decoder_layers=2)),
    "BART, a shallow decoder": ("bart", dict(encoder_layers=3, decoder_layers=1)),
    "BART, a shallow encoder": ("bart", dict(encoder_layers=1, decoder_layers=3)),
    "ELECTRA, full width, tanh GELU": ("electra", dict(embedding_size=32, hidden_act="gelu_pytorch_tanh") | SMALL),
}  # fmt: skip


@functools.cache
def models(name):
    """The model of `transformers`, and the same model here."""
    base, changes = VARIANTS.get(name, (name, {}))
    class_name, options = MODELS[base]
    torch_model = random_model(class_name, options | changes, seed=0)
    return comparison.read(torch_model), torch_model


def assert_equal(line):
    assert line["max_abs_difference"] < TOLERANCE
    assert line["max_abs_logit"] > 0.3  # the comparison means something
    assert line["loss_difference"] < 1e-5


@pytest.mark.parametrize("name", [*MODELS, *VARIANTS])
def test_models_of_transformers_are_the_same_here(name):
    assert_equal(comparison.compare(*models(name), seed=1))


@pytest.mark.parametrize("name", [*MODELS, *VARIANTS])
def test_models_from_here_are_the_same_in_transformers(name):
    ours = with_unread_norms(comparison.random_params(models(name)[0], seed=2))
    torch_model = comparison.write(ours)
    assert_equal(comparison.compare(ours, torch_model, seed=3))
    again = comparison.read(torch_model)
    assert dataclasses.replace(again.model, dropout_rate=0) == dataclasses.replace(ours.model, dropout_rate=0)
    # A Gemma's folder has the scales minus 1, rounded.
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=0, atol=1e-7), again.params, ours.params)


def with_unread_norms(ours):
    """The first layer's norm, which ModernBERT lacks, with the value that is read where there is none."""
    if ours.model.first_attention_norm:
        return ours
    params = jax.tree.map(np.array, ours.params)
    params["transformer"]["encoder"]["layers"]["self_attention_norm"]["scale"][0] = 1
    return ours._replace(params=params)


def test_every_family_is_compared():
    assert {class_name for class_name, _ in MODELS.values()} == FAMILIES.keys()


BEGIN_AND_END = dict(bos_token_id=14, eos_token_id=15)  # of [CLS] text [SEP]
SPECIAL_IDS = {  # model_type -> options
    "t5": dict(pad_token_id=11, eos_token_id=12, decoder_start_token_id=11),
    "bart": dict(pad_token_id=11, eos_token_id=12, bos_token_id=13, decoder_start_token_id=11),
    "bert": dict(pad_token_id=11),
    "electra": dict(pad_token_id=11),
    "roberta": dict(pad_token_id=11) | BEGIN_AND_END,
    "modernbert": dict(pad_token_id=11, cls_token_id=14, sep_token_id=15) | BEGIN_AND_END,
} | {
    name: dict(bos_token_id=11, eos_token_id=12)
    for name in ("gpt2", "gpt_neox", "llama", "mistral", "qwen2", "qwen3")
} | {
    name: dict(pad_token_id=pad, bos_token_id=11, eos_token_id=12)  # a pad that is the first token would be masked
    for name, pad in {"gemma": None, "gemma2": None, "gemma3_text": None, "t5gemma": 11}.items()
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_the_special_ids_are_written(name):
    """No default of a class is among them. The decoders here begin with pad."""
    (family, model, _), torch_model = models(name)
    vocab = dataclasses.replace(VOCAB, pad=11, eos=12, bos=13, cls=14, sep=15)
    config = type(torch_model.config).from_dict(family.huggingface_config(model, vocab)).to_dict()
    expected = SPECIAL_IDS[family.model_type]
    assert {option: config[option] for option in expected} == expected


def test_the_written_config_is_read_by_the_class_as_the_same_options():
    """Options that change no logits: dropout, ids, the start token."""
    ours = models("bart")[0]
    model = dataclasses.replace(ours.model, dropout_rate=0.25, attention_dropout=True)
    config = comparison.write(ours._replace(model=model)).config
    assert (config.dropout, config.attention_dropout, config.activation_dropout) == (0.25, 0.25, 0.25)
    assert (config.pad_token_id, config.eos_token_id, config.bos_token_id) == (VOCAB.pad, VOCAB.eos, VOCAB.bos)
    assert config.decoder_start_token_id == VOCAB.pad
