import pytest

from configs.base import get_config
from models.config import ModelConfig
from tests.models import tiny


def test_the_fields_are_those_of_config_model_and_three_that_the_caller_derives():
    derived = {"dtype", "has_prefix", "one_segment", "predicts_tokens"}
    assert set(ModelConfig.__dataclass_fields__) == set(get_config().model) | derived


@pytest.mark.parametrize(
    "changes, field",
    [
        (dict(num_heads=4, num_kv_heads=3), "model.num_kv_heads=3"),
        (dict(positions="rope", head_dim=5), "model.head_dim=5 must be even"),
        (dict(positions="rope", head_dim=8, partial_rotary_factor=0.4), "8 times model.partial_rotary_factor=0.4 must"),
        (dict(positions="rope", head_dim=8, partial_rotary_factor=0.1), "8 times model.partial_rotary_factor=0.1 must"),
        (
            dict(parallel_residual=True),
            "model.parallel_residual=True needs model.norm_position='pre' and a model without cross-attention (an "
            "encoder-decoder has none with model.merged_attention=True)",
        ),
        (
            dict(parallel_residual=True, architecture="encoder_only", norm_position="post"),
            "model.parallel_residual=True",
        ),
        (dict(scale_logits=True, tie_embeddings=False), "model.scale_logits"),
        (dict(relative_num_buckets=7), "model.relative_num_buckets=7"),
        (dict(relative_num_buckets=8, relative_max_distance=4), "model.relative_max_distance=4"),
        (dict(embedding_size=8, tie_embeddings=True), "model.prediction_head='bert'"),
        (dict(num_token_types=2, architecture="decoder_only"), "model.num_token_types=2"),
    ],
)
def test_invalid_configs_raise_one_line_that_names_the_field(changes, field):
    with pytest.raises(ValueError) as error:
        tiny.config(**changes)
    assert field in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("architecture", ["decoder_only", "encoder_only"])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("share_stacks", True),
        ("merged_attention", True),
        ("continuous_positions", True),
        ("share_embeddings", False),
        ("num_decoder_layers", 2),
    ],
)
def test_a_single_stack_has_no_fields_of_two(field, value, architecture):
    message = f"^model.{field}={value} needs model.architecture='encoder_decoder', not '{architecture}'$"
    with pytest.raises(ValueError, match=message):
        tiny.config(architecture=architecture, positions="rope", **{field: value})
    assert tiny.config(architecture=architecture).of_decoder.num_layers == 2


def test_embedding_size_0_means_d_model():
    assert [tiny.config(embedding_size=size).embedding_width for size in (0, 8, 16)] == [16, 8, 16]
    tiny.config(embedding_size=16, tie_embeddings=True)  # the same width: no projection needed
    tiny.config(embedding_size=8, tie_embeddings=True, predicts_tokens=False)


def test_fields_of_unused_position_encodings_are_not_checked():
    assert tiny.config(positions="none", head_dim=5, relative_num_buckets=7, relative_max_distance=1)
