"""What cannot be read or written is refused in one line that names it; folders of older releases are read."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from contract.errors import ConfigError
from huggingface.config_json import check_options
from huggingface.families import FAMILIES, family_of_folder_config, folders_of
from tests.huggingface.comparison import MODELS, VOCAB
from tests.table import small_experiment


def config_of(name, **changes):
    class_name, options = MODELS[name]
    model_type = FAMILIES[class_name].model_type
    return {"architectures": [class_name], "model_type": model_type} | options | changes


def random_params(family, model):
    """Normal parameters of the family, without the time that jax takes to compile the initializers."""
    rng = np.random.default_rng(0)
    shapes = family.shapes(model)
    return jax.tree.map(lambda leaf: rng.standard_normal(leaf.shape, np.float32), shapes)


@functools.cache
def folder(name):
    """The options and the tensors of a folder, with random tensors."""
    hf_config = config_of(name)
    family = family_of_folder_config(hf_config)
    own_table = {"lm_head.weight": np.ones(1), "shared.weight": np.zeros(1)}  # all that is read of T5's tensors
    model = family.model(hf_config, own_table if name == "t5_v1_1" else {}, "float32")
    params = random_params(family, model)
    return hf_config, family.to_tensors(params, model, hf_config)


def read(name, tensors=None, **changes):
    """The model and the parameters of `folder(name)` with other tensors and options."""
    hf_config = folder(name)[0] | changes
    tensors = folder(name)[1] if tensors is None else tensors
    family = family_of_folder_config(hf_config)
    model = family.model(hf_config, tensors, "float32")
    return model, family.to_params(tensors, model, hf_config)


def assert_refused(message, name, tensors=None, **changes):
    with pytest.raises(ConfigError, match=message) as error:
        read(name, tensors, **changes)
    assert len(str(error.value).splitlines()) == 1


def assert_same(params, others):
    jax.tree.map(np.testing.assert_array_equal, params, others)


@pytest.mark.parametrize(
    ("hf_config", "message"),
    [
        ({"architectures": ["MambaForCausalLM"]}, r"architectures=\['MambaForCausalLM'\] is not one of the known models"
         ": T5ForConditionalGeneration, .*LlamaForCausalLM"),
        ({"model_type": "mamba"}, "model_type='mamba' without architectures is not one of"),
    ],
)  # fmt: skip
def test_unknown_models_are_refused_with_the_known_ones(hf_config, message):
    with pytest.raises(ConfigError, match=message):
        family_of_folder_config(hf_config)


def test_a_folder_without_architectures_is_the_language_model_of_its_type():
    for family in FAMILIES.values():
        assert family_of_folder_config({"model_type": family.model_type}).model_type == family.model_type
    assert family_of_folder_config({"model_type": "bert"}).architecture == "BertForMaskedLM"
    assert family_of_folder_config({"architectures": ["BartModel"]}).architecture == "BartForConditionalGeneration"


@pytest.mark.parametrize(
    ("name", "architecture"),
    [
        ("gpt2", "GPT2Model"), ("llama", "LlamaModel"), ("mistral", "MistralModel"), ("qwen2", "Qwen2Model"),
        ("qwen3", "Qwen3Model"), ("gpt_neox", "GPTNeoXModel"), ("gemma", "GemmaModel"), ("gemma2", "Gemma2Model"),
        ("gemma3", "Gemma3TextModel"),
    ],
)  # fmt: skip
def test_a_folder_of_a_decoder_without_its_head_is_that_of_its_language_model_with_a_tied_table(name, architecture):
    hf_config = config_of(name, tie_word_embeddings=True)
    family = family_of_folder_config(hf_config)
    model = family.model(hf_config, {}, "float32")
    params = random_params(family, model)
    tensors = family.to_tensors(params, model, hf_config)
    bare = {tensor_name.removeprefix(family.prefix): tensor for tensor_name, tensor in tensors.items()}
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    with torch.device("meta"):
        options = {key: value for key, value in hf_config.items() if key not in ("architectures", "model_type")}
        of_class = getattr(transformers, architecture)
        assert set(bare) == set(of_class(of_class.config_class(**options)).state_dict())
    headless = hf_config | {"architectures": [architecture]}
    assert family_of_folder_config(headless) is family
    found = family.to_params(bare, family.model(headless, bare, "float32"), headless)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), found, params)  # Gemma adds 1
    if name != "gpt2":
        untied = headless | {"tie_word_embeddings": False}
        with pytest.raises(ConfigError, match=r"^1 missing tensors: (lm_head|embed_out).weight$"):
            family.to_params(bare, family.model(untied, bare, "float32"), untied)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("t5_v1_0", dict(num_decoder_layers=2), r"^13 surplus tensors, .*: decoder.block.2.layer.0.layer_norm.weight"),
        ("t5_v1_0", dict(num_decoder_layers=4), r"^13 missing tensors: decoder.block.3.layer.0"),
        ("bart", dict(decoder_layers=2), r"^\d+ surplus tensors, .*: model.decoder.layers.2."),
        ("bart", dict(decoder_layers="3"), r"decoder_layers='3' must be a whole number"),
        ("t5_v1_0", dict(feed_forward_proj="gated-relu"), r"feed_forward_proj='gated-relu' is not supported"),
        ("t5_v1_1", dict(tie_word_embeddings=True), r"shared.weight and lm_head.weight must be equal"),
        ("t5_v1_0", dict(tie_word_embeddings=False), r"lm_head.weight is missing: config.json has"),
        ("bert", dict(hidden_act="quick_gelu"), r"hidden_act='quick_gelu' is not supported"),
        ("bert", dict(num_attention_heads=5), r"num_attention_heads=5 must divide hidden_size=32"),
        ("bert", dict(quantization_config={"bits": 4}), r"quantization_config is not supported"),
        ("llama", dict(rope_parameters={"rope_type": "yarn"}), r"rope_parameters=.*yarn.* is not supported"),
        ("llama", dict(attention_bias=True), r"attention_bias=True is not supported, only False"),
        ("llama", dict(num_key_value_heads=3), r"model.num_kv_heads=3 must divide model.num_heads=4"),
    ],
)  # fmt: skip
def test_options_that_models_here_do_not_have_are_refused(name, changes, message):
    assert_refused(message, name, **changes)


def test_missing_and_surplus_tensors_are_named_with_their_number():
    tensors = folder("llama")[1]
    without = {name: tensor for name, tensor in tensors.items() if "layers.1.mlp" not in name}
    assert_refused(r"3 missing tensors: model.layers.1.mlp.gate_proj.weight, .*up_proj.weight, ", "llama", without)
    assert_refused(r"2 surplus tensors, which .*: a, b$", "llama", tensors | {"a": np.ones(1), "b": np.ones(1)})
    more_layers = tensors | {f"model.layers.3.{k}": np.ones(1) for k in range(9)}
    assert_refused(r"9 surplus tensors, .*: model.layers.3.0, .*model.layers.3.3$", "llama", more_layers)
    assert_refused(
        r"model.embed_tokens.weight has shape \[60, 32\], and config.json gives a model with \[61, 32\]",
        "llama", tensors | {"model.embed_tokens.weight": np.ones((60, 32))},
    )  # fmt: skip
    assert_refused(r"\[48\], and config.json gives a model with \[96\]", "gpt2",
                   folder("gpt2")[1] | {"transformer.h.0.attn.c_attn.bias": np.ones(48)})  # fmt: skip


def test_copies_of_a_shared_tensor_must_be_equal():
    tensors = folder("gpt2")[1]
    table = tensors["transformer.wte.weight"]
    assert_same(read("gpt2", tensors | {"lm_head.weight": table})[1], read("gpt2")[1])
    assert_refused(r"transformer.wte.weight and lm_head.weight must be equal", "gpt2",
                   tensors | {"lm_head.weight": table + 1})  # fmt: skip
    only_copy = {name: tensor for name, tensor in tensors.items() if name != "transformer.wte.weight"}
    assert_same(read("gpt2", only_copy | {"lm_head.weight": table})[1], read("gpt2")[1])


def test_folders_of_older_releases_are_read():
    _, tensors = folder("gpt2")
    old = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    old |= {"h.0.attn.bias": np.ones((1, 1, 24, 24)), "h.2.attn.masked_bias": np.array(-1e4)}
    assert_same(read("gpt2", old)[1], read("gpt2")[1])

    tensorflow = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in folder("bert")[1].items()
    }
    assert any("gamma" in name for name in tensorflow)
    norm = "bert.embeddings.LayerNorm"
    assert_refused(r"LayerNorm.\w+ and .*LayerNorm.\w+ are the same parameter", "bert",
                   tensorflow | {f"{norm}.weight": tensorflow[f"{norm}.gamma"]})  # fmt: skip
    extra = {"bert.pooler.dense.weight": np.ones((32, 32)), "cls.seq_relationship.bias": np.ones(2)}
    extra |= {"bert.embeddings.position_ids": np.arange(24)[None]}
    assert_same(read("bert", tensorflow | extra)[1], read("bert")[1])
    assert_refused(r"3 surplus tensors", "gpt2", tensors | extra)

    rotary = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(4)}
    assert_same(read("llama", folder("llama")[1] | rotary)[1], read("llama")[1])
    relative = {"decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight": np.ones((8, 4))}
    assert_same(read("t5_v1_0", folder("t5_v1_0")[1] | relative)[1], read("t5_v1_0")[1])


def test_options_of_published_folders_are_read():
    """GPT-NeoX 20B, a Pythia that transformers 4.45 to 4.57 wrote, SmolLM 2, the first Llama and Unsloth's copies."""
    neox = dict(rope_parameters=None, rotary_pct=0.5, rotary_emb_base=500)
    model = read("gpt_neox", **neox)[0]
    assert (model.rotary_features, model.rope_theta) == (8, 500.0)
    assert read("gpt_neox", **neox, partial_rotary_factor=0.5, rope_theta=500)[0] == model
    assert_refused(r"partial_rotary_factor=0.25 is not supported, only None or 0.5", "gpt_neox", **neox,
                   partial_rotary_factor=0.25)  # fmt: skip
    assert read("gpt_neox", **neox, hidden_act="gelu_fast")[0] == dataclasses.replace(model, mlp="gelu")
    of_neox = dict(hidden_dropout_prob=0, attention_probs_dropout_prob=0)
    of_llama = {"is_llama_config": True, "rope_interleaved": False, "transformers.js_config": {"dtype": "fp32"}}
    of_llama |= dict(max_sequence_length=24, neftune_noise_alpha=5, unsloth_fixed=True, unsloth_version="2025.1")
    for name, options in (("gpt_neox", of_neox), ("llama", of_llama)):
        check_options(config_of(name, **options), FAMILIES[MODELS[name][0]].defaults)
    with pytest.raises(ConfigError, match=r"the option rope_interleaved=True is unknown"):
        check_options(config_of("llama", rope_interleaved=True), FAMILIES["LlamaForCausalLM"].defaults)


def test_tensors_that_models_here_lack_must_be_0():
    tensors = folder("bart")[1]
    assert tensors["final_logits_bias"].shape == (1, 61)
    without = {name: tensor for name, tensor in tensors.items() if name != "final_logits_bias"}
    assert_same(read("bart", without)[1], read("bart")[1])
    assert_refused("final_logits_bias must be 0", "bart", tensors | {"final_logits_bias": np.ones((1, 61))})
    # A model without token types is written with one type of 0, and read as one without.
    family, model = FAMILIES["BertForMaskedLM"], dataclasses.replace(read("bert")[0], num_token_types=0)
    params = random_params(family, model)
    hf_config = family.huggingface_config(model, VOCAB)
    written = family.to_tensors(params, model, hf_config)
    types = "bert.embeddings.token_type_embeddings.weight"
    assert hf_config["type_vocab_size"] == 1 and not written[types].any() and written[types].shape == (1, 32)
    assert dataclasses.replace(family.model(hf_config, written, "float32"), has_prefix=True) == dataclasses.replace(
        model, attention="xla", has_prefix=True
    )
    assert_same(family.to_params(written, model, hf_config), params)
    ones = written | {types: np.ones((1, 32))}
    assert family.model(hf_config, ones, "float32").num_token_types == 1
    with pytest.raises(ConfigError, match=r"token_type_embeddings.weight must be 0"):
        family.to_params(ones, model, hf_config)


# What the runs of this project are written as


def folders(name, architecture, **overrides):
    experiment = small_experiment(name, architecture, **overrides)
    return folders_of(experiment.learner, experiment.params_shapes)


LEARNED = dict(model__positions="learned")
EXACT = LEARNED | dict(model__mlp="exact_gelu")


@pytest.mark.parametrize(
    ("name", "architecture", "overrides", "written"),
    [
        ("span_corruption", "encoder_decoder", {}, "T5ForConditionalGeneration"),
        ("ul2", "encoder_decoder", dict(model__mlp="gated_silu"), "T5ForConditionalGeneration"),
        ("bart", "encoder_decoder", {}, "BartForConditionalGeneration"),
        ("clm", "decoder_only", {}, "LlamaForCausalLM"),
        ("mlm", "encoder_only", LEARNED, "BertForMaskedLM"),
        ("mlm", "encoder_only", EXACT, "RobertaForMaskedLM"),
        ("mlm", "encoder_only", EXACT | dict(model__num_token_types=2), "BertForMaskedLM"),
        ("mlm", "encoder_only", EXACT | dict(model__embedding_size=16), "ElectraForMaskedLM"),
        ("nsp", "encoder_only", LEARNED, "BertForPreTraining"),
    ],
)  # fmt: skip
def test_runs_are_written_as_the_class_that_holds_their_model(name, architecture, overrides, written):
    (folder,) = folders(name, architecture, **overrides).values()
    assert folder.family.architecture == written
    config = folder.family.huggingface_config(folder.model, VOCAB)
    shapes = folder.family.shapes(folder.model)
    assert jax.tree.map(lambda leaf: leaf.shape, shapes) == jax.tree.map(lambda leaf: leaf.shape, folder.params)
    assert folder.family.table(folder.model, config)


@pytest.mark.parametrize(
    ("name", "architecture", "overrides", "message"),
    [
        ("mlm", "encoder_only", {}, r"model.positions='rope': BertForMaskedLM of transformers has 'learned'"),
        ("ul2", "decoder_only", {}, r"model.positions='relative': (Llama|GPT2)\w+ of transformers has"),
        ("prefix_lm", "decoder_only", dict(
            model__positions="rope", model__mlp="gated_silu", model__scale_attention=True,
        ), r"data.bidirectional_inputs=True: LlamaForCausalLM of transformers has False"),
        ("span_corruption", "encoder_decoder", dict(model__share_stacks=True),
         r"model.share_stacks=True: T5ForConditionalGeneration of transformers has False"),
        ("clm", "encoder_decoder", dict(
            model__num_decoder_layers=1, model__share_embeddings=False, model__scale_embeddings=True,
            model__sandwich_norm=True, model__positions="rope",
        ), r"model.num_decoder_layers=1: T5GemmaForConditionalGeneration of transformers has 0"),
        ("classification", "encoder_only", {}, r"model\.\w+=.*ForSequenceClassification of transformers has"),
    ],
)  # fmt: skip
def test_runs_whose_model_no_class_holds_are_refused_with_the_field(name, architecture, overrides, message):
    with pytest.raises(ConfigError, match=message):
        folders(name, architecture, **overrides)
