"""Options of config.json: names and defaults as in `transformers`, and one line for what is unknown or cannot be."""

import dataclasses

import pytest

from contract.errors import ConfigError
from huggingface.config_json import check_options
from huggingface.families import FAMILIES, family_of_folder_config
from tests.huggingface.comparison import VOCAB

GPT2 = dict(vocab_size=61, n_positions=24, n_embd=48, n_layer=2, n_head=6)
LLAMA = dict(
    vocab_size=61, hidden_size=32, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4,
    max_position_embeddings=24,
)  # fmt: skip
PART = {"rope_type": "default", "partial_rotary_factor": 0.25}
LLAMA_3 = dict(
    rope_type="llama3", factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192
)
T5 = dict(vocab_size=61, d_model=32, d_ff=40, num_layers=2, d_kv=8, num_heads=4)
ENCODER = dict(vocab_size=61, hidden_size=32, intermediate_size=40, num_hidden_layers=3, num_attention_heads=4)
CONFIGS = {
    "BartForConditionalGeneration": {},
    "BertForMaskedLM": ENCODER,
    "Gemma2ForCausalLM": LLAMA | {"head_dim": 256},
    "Gemma3ForCausalLM": LLAMA | {"head_dim": 256},
    "GemmaForCausalLM": LLAMA,
    "GPTNeoXForCausalLM": LLAMA,
    "T5GemmaForConditionalGeneration": {"encoder": LLAMA | {"head_dim": 256}, "decoder": LLAMA | {"head_dim": 256}},
    "ModernBertForMaskedLM": ENCODER,
    "Qwen3ForCausalLM": LLAMA,
}
CONFIGS |= {
    "GPT2LMHeadModel": GPT2,
    "LlamaForCausalLM": LLAMA,
    "MistralForCausalLM": LLAMA,
    "Qwen2ForCausalLM": LLAMA,
    "T5ForConditionalGeneration": T5,
}


def config_of(name, **changes):
    return {"architectures": [name], "model_type": FAMILIES[name].model_type} | CONFIGS[name] | changes


def fields_of(name, **changes):
    family = family_of_folder_config(config_of(name, **changes))
    return family.model_fields(family.flat(config_of(name, **changes)), {})


@pytest.mark.parametrize("name", FAMILIES)
def test_aliases_are_those_of_transformers(name):
    transformers = pytest.importorskip("transformers")
    assert dict(FAMILIES[name].option_aliases) == getattr(transformers, name).config_class.attribute_map


def test_an_alias_alone_is_the_option():
    heads = {"n_head": None, "num_attention_heads": 4, "n_positions": None, "max_position_embeddings": 20}
    fields = fields_of("GPT2LMHeadModel", **heads)
    assert (fields["num_heads"], fields["head_dim"], fields["max_length"]) == (4, 12, 20)


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_theta": 500},
        {"rope_theta": 500.0, "rope_parameters": {"rope_type": "default"}},
        {"rope_theta": 500.0, "rope_parameters": {"rope_type": "default", "rope_theta": 7.0}},
        {"rope_theta": 500.0, "rope_scaling": {"rope_type": "default", "rope_theta": 9.0}},
        {"rope_scaling": {"rope_type": "default", "rope_theta": 9.0}, "rope_parameters": {"rope_theta": 7.0}},
        {"rope_scaling": {"type": "default"}, "rope_parameters": {"rope_type": "default", "rope_theta": 7.0}},
    ],
)
def test_rope_theta_is_that_of_transformers(rope):
    transformers = pytest.importorskip("transformers")
    expected = transformers.LlamaConfig.from_dict(config_of("LlamaForCausalLM", **rope)).rope_parameters["rope_theta"]
    assert fields_of("LlamaForCausalLM", **rope)["rope_theta"] == expected


def test_the_scaling_of_llama_3_2_is_read():
    """As releases before 5 wrote it: rope_scaling, whose base is the option rope_theta."""
    fields = fields_of("LlamaForCausalLM", rope_theta=5e5, rope_scaling=LLAMA_3)
    assert (fields["rope_theta"], fields["rope_scaling_factor"], fields["rope_original_length"]) == (5e5, 32, 8192)


def test_the_part_of_a_head_that_rotates_is_the_entry_of_rope_parameters():
    """As in transformers 5: rotary_pct is that of a folder without the entry."""
    assert fields_of("GPTNeoXForCausalLM", rotary_pct=0.5)["partial_rotary_factor"] == 0.5
    assert fields_of("GPTNeoXForCausalLM", rotary_pct=1.0, rope_parameters=PART)["partial_rotary_factor"] == 0.25


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"])
def test_key_and_value_heads_of_null_are_all_heads(name):
    """As in the configurations of transformers, whose defaults are 8 and 32 where the option is absent."""
    assert fields_of(name, num_key_value_heads=None, sliding_window=None)["num_kv_heads"] == 4


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("GPT2LMHeadModel", {"model_type": "llama"}, "model_type='llama' is not 'gpt2', as of GPT2LMHeadModel"),
        ("T5ForConditionalGeneration", {"dense_act_fn": "silu"}, "dense_act_fn='silu' contradicts feed_forward_proj="),
        ("T5ForConditionalGeneration", {"is_gated_act": True}, "is_gated_act=True contradicts feed_forward_proj="),
        ("LlamaForCausalLM", {"rope_parameters": {"rope_theta": None}}, "rope_theta=None must be a number above 0"),
        ("LlamaForCausalLM", {"rope_theta": -1.0}, "rope_theta=-1.0 must be a number above 0"),
        ("LlamaForCausalLM", {"rope_scaling": {"rope_type": "nope"}}, "rope_scaling=.*nope.* is not supported"),
        ("LlamaForCausalLM", {"rope_parameters": {"type": "yarn"}}, "rope_parameters=.*yarn.* is not supported"),
        ("LlamaForCausalLM", {"rope_scaling": "linear"}, "rope_scaling=linear is not supported"),
        ("LlamaForCausalLM", {"num_attention_heads": "4"}, "num_attention_heads='4' must be a whole number"),
        ("LlamaForCausalLM", {"num_key_value_heads": "2"}, "num_key_value_heads='2' must be a whole number"),
        ("LlamaForCausalLM", {"num_hidden_layers": True}, "num_hidden_layers=True must be a whole number"),
        ("LlamaForCausalLM", {"rms_norm_eps": "1e-6"}, "rms_norm_eps='1e-6' must be a number"),
        ("LlamaForCausalLM", {"tie_word_embeddings": "false"}, "tie_word_embeddings='false' must be true or false"),
        ("BertForMaskedLM", {"num_attention_heads": "4"}, "num_attention_heads='4' must be a whole number"),
        ("BertForMaskedLM", {"num_attention_heads": 0}, "num_attention_heads=0 must divide hidden_size=32"),
        ("BertForMaskedLM", {"hidden_act": 3}, "hidden_act=3 must be text"),
        ("LlamaForCausalLM", {"rope_parameters": "default"}, "rope_parameters=default is not supported"),
        (
            "LlamaForCausalLM",
            {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
            "the scaling .* is not supported",
        ),
        (
            "LlamaForCausalLM",
            {"rope_scaling": LLAMA_3 | {"factor": "8"}},
            "the scaling .* is not supported: llama3 needs",
        ),
        ("LlamaForCausalLM", {"rope_scaling": LLAMA_3 | {"high_freq_factor": 8.0}}, "the scaling .* is not supported"),
        (
            "LlamaForCausalLM",
            {"rope_parameters": PART},
            "partial_rotary_factor=0.25 of rope_parameters is not supported",
        ),
        ("GPTNeoXForCausalLM", {"rope_scaling": PART | {"partial_rotary_factor": "1"}}, "partial_rotary_factor='1' of"),
        ("MistralForCausalLM", {}, "sliding_window=4096 is not supported, only None"),
        ("MistralForCausalLM", {"sliding_window": 12}, "sliding_window=12 is not supported, only None"),
        ("Qwen2ForCausalLM", {"use_sliding_window": True}, "use_sliding_window=True is not supported, only False"),
        ("Qwen2ForCausalLM", {"layer_types": ["sliding_attention"] * 2}, "layer_types=.* only full_attention"),
        ("Qwen3ForCausalLM", {"layer_types": 5}, "layer_types=5 is not supported"),
        ("Qwen3ForCausalLM", {"layer_types": [{}]}, r"layer_types=\[{}\] is not supported"),
        ("Qwen3ForCausalLM", {"layer_types": ["sliding_attention"] * 2}, "layer_types=.* only full_attention"),
        ("GemmaForCausalLM", {"hidden_activation": "silu"}, "hidden_activation='silu' is not supported"),
        (
            "GemmaForCausalLM",
            {"use_bidirectional_attention": True},
            "use_bidirectional_attention=True is not supported",
        ),
        ("Gemma2ForCausalLM", {"query_pre_attn_scalar": 144}, "query_pre_attn_scalar=144 is not supported, only 256"),
        ("Gemma2ForCausalLM", {"rope_scaling": LLAMA_3}, "rope_scaling=.* is not supported, only rope_type=default"),
        (
            "Gemma2ForCausalLM",
            {"layer_types": ["full_attention", "sliding_attention"]},
            "layer_types=.* is not supported, only one entry for each layer, of which every n-th is 'full_attention', "
            "the last of n",
        ),
        (
            "Gemma3ForCausalLM",
            {"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8.0}}},
            "rope_parameters.full_attention=.* is not supported",
        ),
        ("Gemma3ForCausalLM", {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}, "rope_scaling=.* is not supp"),
        (
            "T5GemmaForConditionalGeneration",
            {"encoder": LLAMA | {"head_dim": 256, "hidden_size": 64}},
            "hidden_size is 64 in encoder and 32 in decoder: only stacks with the same options are supported",
        ),
        ("Gemma3ForCausalLM", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping=50.0 is not supported"),
        ("T5GemmaForConditionalGeneration", {"encoder": None}, "encoder and decoder must each be a section of options"),
        ("ModernBertForMaskedLM", {"layer_types": ["sliding_attention"] * 3}, "layer_types=.* only one entry for each"),
        ("ModernBertForMaskedLM", {"layer_types": "full_attention"}, "layer_types=full_attention is not supported"),
        ("ModernBertForMaskedLM", {"rope_parameters": [1]}, r"rope_parameters=\[1\] is not supported"),
        (
            "ModernBertForMaskedLM",
            {"rope_parameters": {"full_attention": "default"}},
            "rope_parameters.full_attention=default is not supported",
        ),
        ("ModernBertForMaskedLM", {"global_rope_theta": 0}, "global_rope_theta=0 must be a number above 0"),
        ("ModernBertForMaskedLM", {"classifier_activation": "silu"}, "classifier_activation='silu' is not supported"),
    ],
)
def test_a_value_that_cannot_be_is_one_line(name, changes, message):
    with pytest.raises(ConfigError, match=f"config.json: {message}") as error:
        fields_of(name, **changes)
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize("name", FAMILIES)
def test_every_option_of_todays_classes_is_known(name):
    transformers = pytest.importorskip("transformers")
    family = FAMILIES[name]
    check_options(family.flat(getattr(transformers, name).config_class().to_dict()), family.defaults)


@pytest.mark.parametrize("older", [{}, dict(global_attn_every_n_layers=2, global_rope_theta=50, local_attention=9)])
def test_modernbert_of_earlier_releases_has_the_options_of_todays(older):
    transformers = pytest.importorskip("transformers")
    options = ENCODER | older
    config = transformers.ModernBertConfig.from_dict(dict(options)).to_dict()
    new = config | {"architectures": ["ModernBertForMaskedLM"]}
    assert family_of_folder_config(new).model_fields(new, {}) == fields_of("ModernBertForMaskedLM", **older)
    assert fields_of("ModernBertForMaskedLM", **older)["local_distance"] == (4 if older else 64)


@pytest.mark.parametrize(
    ("name", "older"),
    [
        ("LlamaForCausalLM", dict(rope_theta=50.0)),
        ("Gemma3ForCausalLM", dict(sliding_window_pattern=3, rope_theta=50.0, rope_local_base_freq=7.0)),
        ("ModernBertForMaskedLM", dict(global_attn_every_n_layers=2, global_rope_theta=50.0, local_rope_theta=7.0)),
    ],
)
def test_what_is_written_is_the_same_model_for_earlier_releases(name, older):
    """They do not read rope_parameters and layer_types."""
    family = FAMILIES[name]
    model = family.model(config_of(name, **older), {}, "float32")
    written = family.huggingface_config(model, VOCAB)
    assert {option: written[option] for option in older} == older
    for option in ("rope_parameters", "layer_types"):
        written.pop(option, None)
    assert family.model(written, {}, "float32") == model


def test_a_number_out_of_its_range_is_one_line():
    config = config_of("LlamaForCausalLM", num_hidden_layers=-2)
    with pytest.raises(ConfigError, match=r"^config\.json: model\.num_layers=-2 must be") as error:
        family_of_folder_config(config).model(config, {}, "float32")
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "rates", "without"),
    [
        ("BertForMaskedLM", ("hidden_dropout_prob",), "attention_probs_dropout_prob"),
        ("GPT2LMHeadModel", ("resid_pdrop", "embd_pdrop"), "attn_pdrop"),
        ("BartForConditionalGeneration", ("dropout", "activation_dropout"), "attention_dropout"),
        ("ModernBertForMaskedLM", ("mlp_dropout", "embedding_dropout"), "attention_dropout"),
        ("GPTNeoXForCausalLM", ("hidden_dropout",), "attention_dropout"),
    ],
)
def test_a_rate_of_0_of_attention_alone_is_read_and_written(name, rates, without):
    family, config = FAMILIES[name], config_of(name, **dict.fromkeys(rates, 0.25))
    model = family.model(config | {without: 0.0}, {}, "float32")
    assert (model.dropout_rate, model.attention_dropout) == (0.25, False) and not family.notes(config | {without: 0.0})
    written = family.huggingface_config(model, VOCAB)
    assert {option: written[option] for option in (*rates, without)} == dict.fromkeys(rates, 0.25) | {without: 0.0}
    assert family.model(config | {without: 0.25}, {}, "float32") == dataclasses.replace(model, attention_dropout=True)
    [note] = family.notes(config | {without: 0.5})
    assert note.endswith("model.dropout_rate=0.25 is used for all") and f"{without}=0.5" in note
    off = family.model(config | dict.fromkeys((*rates, without), 0.0), {}, "float32")
    assert (off.dropout_rate, off.attention_dropout) == (0.0, True)


def test_t5_is_written_without_its_attention_dropout():
    """Its class has one rate, and logits have no dropout."""
    family = FAMILIES["T5ForConditionalGeneration"]
    model = dataclasses.replace(family.model(config_of(family.architecture), {}, "float32"), attention_dropout=False)
    assert family.huggingface_config(model, VOCAB)["dropout_rate"] == model.dropout_rate == 0.1


def test_published_folders_of_earlier_releases_are_known():
    bert = {"attention_probs_dropout_prob": 0.1, "directionality": "bidi", "pooler_fc_size": 768, "pooler_type": "x"}
    check_options(
        bert | {"gradient_checkpointing": False, "_name_or_path": "bert"}, FAMILIES["BertForMaskedLM"].defaults
    )
    t5 = {"n_positions": 512, "output_past": True, "task_specific_params": {"summarization": {"num_beams": 4}}}
    check_options(t5 | {"torch_dtype": "float32"}, FAMILIES["T5ForConditionalGeneration"].defaults)
    gemma = {"cache_implementation": "hybrid", "sliding_window": 4096, "sliding_window_size": 4096}
    check_options(gemma, FAMILIES["Gemma2ForCausalLM"].defaults)


def test_the_layers_of_gemma_2_have_one_order_where_layer_types_is_missing():
    """transformers reads sliding_window_pattern for Gemma 3 alone."""
    with pytest.raises(ConfigError, match="the option sliding_window_pattern=3 is unknown here"):
        check_options({"sliding_window_pattern": 3}, FAMILIES["Gemma2ForCausalLM"].defaults)
    assert fields_of("Gemma2ForCausalLM", sliding_window_pattern=3)["global_every"] == 2
    assert fields_of("Gemma3ForCausalLM", sliding_window_pattern=3)["global_every"] == 3


@pytest.mark.parametrize("name", ["Gemma2ForCausalLM", "Gemma3ForCausalLM", "T5GemmaForConditionalGeneration"])
def test_a_gemma_without_local_layers_is_written_whatever_their_fields_say(name):
    family = FAMILIES[name]
    model = family.model(family.flat(config_of(name)), {}, "float32")
    every = dataclasses.replace(model, global_every=1, first_layer_global=True, local_rope_theta=7.0)
    assert set(family.huggingface_config(every, VOCAB)["layer_types"]) == {"full_attention"}
    local = dataclasses.replace(model, global_every=2, first_layer_global=True)
    with pytest.raises(ConfigError, match=r"model.first_layer_global=True: .* has False"):
        family.check_model(local)


def test_the_token_tables_of_t5gemma_are_those_of_its_sections():
    assert fields_of("T5GemmaForConditionalGeneration", vocab_size=256000)["vocab_size"] == LLAMA["vocab_size"]


def test_an_unknown_option_is_named_unless_it_is_off():
    check_options({"moe": None, "mtp": False}, {})
    for value in (1, True, {"a": 1}):
        with pytest.raises(ConfigError, match=r"the option moe=.* is unknown here and may be of a later release"):
            check_options({"moe": value}, {})
