"""config.json of a Hugging Face folder: its options with the defaults of its class, and the refusal of unknown ones."""

from collections.abc import Mapping
from typing import Any

from contract.errors import ConfigError

# Options of every class that change what the tensors mean or which code runs: refused.
_EVERY_CLASS = ("quantization_config", "auto_map", "pruned_heads", "adapters")

# Options that change no logits of the classes here: what every configuration of transformers may contain, releases
# before 5 included; token ids and options of generation, which these releases write here too; options of heads for
# other tasks, of initial values and of the order of summation; entries of published folders that no class reads.
_WITHOUT_EFFECT = """
    _name_or_path name_or_path _attn_implementation _attn_implementation_autoset _commit_hash architectures
    attn_implementation chunk_size_feed_forward cross_attention_hidden_size dtype finetuning_task
    gradient_checkpointing id2label label2id is_composition is_decoder is_encoder_decoder model_type
    num_labels _num_labels output_attentions output_hidden_states output_past prefix problem_type return_dict
    task_specific_params tf_legacy_loss tie_encoder_decoder tokenizer_class torch_dtype torchscript
    transformers_version transformers_weights use_bfloat16 use_cache bad_words_ids begin_suppress_tokens
    bos_token_id decoder_start_token_id diversity_penalty do_sample early_stopping encoder_no_repeat_ngram_size
    eos_token_id exponential_decay_length_penalty force_bos_token_to_be_generated forced_bos_token_id
    forced_eos_token_id length_penalty max_length min_length no_repeat_ngram_size num_beam_groups num_beams
    num_return_sequences output_scores pad_token_id remove_invalid_values repetition_penalty return_dict_in_generate
    sep_token_id suppress_tokens temperature top_k top_p typical_p add_bias_logits add_final_layer_norm
    classif_dropout classifier_dropout directionality extra_pos_embeddings generator_size initializer_factor n_ctx
    n_positions normalize_before normalize_embedding pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers
    pooler_size_per_head pooler_type pretraining_tp reorder_and_upcast_attn replacing_rate save_step
    static_position_embeddings student_decoder_layers student_encoder_layers
    summary_activation summary_first_dropout summary_last_dropout summary_proj_to_labels summary_type
    summary_use_proj attention_probs_dropout_prob hidden_dropout_prob is_llama_config max_sequence_length
    neftune_noise_alpha transformers.js_config unsloth_fixed unsloth_version
    cache_implementation _sliding_window_pattern classifier_dropout_rate sliding_window_size
"""

# The kinds of values of options, and the options with a null default whose values are not whole numbers, or that their
# family checks.
_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text", list: "a list"}
_ANY_TYPE = (
    *("rope_scaling", "rope_parameters", "rope_theta", "layer_types", "scale_decoder_outputs", "dense_act_fn"),
    *("is_gated_act", "bos_token_id", "decoder_start_token_id", "forced_eos_token_id", "partial_rotary_factor"),
)


class Options:
    """The options of a config.json. An option that is absent has the default of its class in `transformers`.

    So has one that is null, whatever null is there: `Family.options` gives a value to those where it is another one.
    `transformers` reads no options but those of the class's configuration, so other entries of the file have no effect.

    aliases: other names of options -> their names (`attribute_map` of the configuration).

    Raises ConfigError for an option that no class supports, such as quantization, and for an option of another type
    than its default, such as a number in quotation marks. An option whose default is null is a whole number, but for
    those of _ANY_TYPE.
    """

    def __init__(self, values: Mapping[str, Any], defaults: Mapping[str, Any], aliases: Mapping[str, str]):
        given = {aliases.get(name, name): value for name, value in values.items() if value is not None}
        self._values = {**defaults, **given}
        for name in _EVERY_CLASS:
            if values.get(name):
                raise ConfigError(f"config.json: {name} is not supported: only plain weights and the library's classes")
        for name, default in defaults.items():
            value, kind = self._values[name], type(default) if default is not None else int
            is_other = type(value) is not kind and (kind, type(value)) != (float, int)
            if is_other and value is not None and name not in _ANY_TYPE:
                raise ConfigError(f"config.json: {name}={value!r} must be {_KINDS[kind]}")

    def __getitem__(self, name: str) -> Any:
        """Returns the value."""
        return self._values[name]

    def require(self, name: str, *allowed: Any) -> Any:
        """Returns the value. Raises ConfigError if it is not one of `allowed`."""
        value = self[name]
        if value not in allowed:
            values = " or ".join(map(repr, allowed))
            raise ConfigError(f"config.json: {name}={value!r} is not supported, only {values}")
        return value

    def choose(self, name: str, choices: Mapping[str, Any]) -> Any:
        """Returns the choice that the value names. Raises ConfigError for any other value."""
        return choices[self.require(name, *choices)]

    def quotient(self, name: str, divisor: str) -> int:
        """Returns the value of `name` divided by that of `divisor`. Raises ConfigError if it is not whole."""
        if self[divisor] < 1 or self[name] % self[divisor]:
            raise ConfigError(f"config.json: {divisor}={self[divisor]} must divide {name}={self[name]}")
        return self[name] // self[divisor]


def check_options(hf_config: Mapping[str, Any], read: Mapping[str, Any]) -> None:
    """Raises ConfigError for an option that may change what the model computes, and that nothing here reads.

    A later release of transformers may add such an option to a class; without it, the logits would be wrong in silence.
    An unknown option that is null or false is taken to be off.

    read: the options that the family reads (Family.defaults and Family.option_aliases).
    """
    without_effect = set(_WITHOUT_EFFECT.split())
    for name, value in hf_config.items():
        if name in read or name in without_effect or value is None or value is False:
            continue
        shown = repr(value) if len(repr(value)) <= 40 else f"{repr(value)[:40]}..."
        raise ConfigError(
            f"config.json: the option {name}={shown} is unknown here and may be of a later release of transformers: if "
            "it does not change what the model computes, remove it from the file"
        )
