"""Models of Hugging Face folders and of configs."""

import numpy as np

import cloze
from tests.table import small_config


def test_a_new_model_is_that_of_the_config_and_its_seed():
    config = small_config("clm", "decoder_only")
    first, second = cloze.new(config), cloze.new(config, {"seed": config["seed"] + 1})
    again = cloze.new(config)
    embedding = [
        np.asarray(model.params["transformer"]["token_embedder"]["embedding"]) for model in (first, second, again)
    ]
    assert (embedding[0] == embedding[2]).all() and (embedding[0] != embedding[1]).any()
    assert cloze.new(config, {"model.d_ff": 64}).experiment.model.d_ff == 64
    assert config["model"]["d_ff"] != 64  # the caller's config is unchanged
