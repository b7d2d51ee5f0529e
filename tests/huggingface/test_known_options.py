"""Options of config.json that nothing here reads are refused, unless they are known to change no logits."""

import pytest

from contract.errors import ConfigError
from huggingface.families import FAMILIES
from huggingface.known_options import check_options


@pytest.mark.parametrize("name", FAMILIES)
def test_every_option_of_todays_classes_is_known(name):
    transformers = pytest.importorskip("transformers")
    check_options(getattr(transformers, name).config_class().to_dict(), FAMILIES[name].defaults)


def test_published_folders_of_earlier_releases_are_known():
    bert = {"attention_probs_dropout_prob": 0.1, "directionality": "bidi", "pooler_fc_size": 768, "pooler_type": "x"}
    check_options(
        bert | {"gradient_checkpointing": False, "_name_or_path": "bert"}, FAMILIES["BertForMaskedLM"].defaults
    )
    t5 = {"n_positions": 512, "output_past": True, "task_specific_params": {"summarization": {"num_beams": 4}}}
    check_options(t5 | {"torch_dtype": "float32"}, FAMILIES["T5ForConditionalGeneration"].defaults)


@pytest.mark.parametrize("value", [1, True, "a", [1], {"a": 1}, 0.5])
def test_an_unknown_option_is_named(value):
    with pytest.raises(ConfigError, match=r"the option moe=.* is unknown here and may be of a later release"):
        check_options({"moe": value}, {})


def test_an_unknown_option_that_is_off_is_accepted():
    check_options({"moe": None, "mtp": False}, {})
