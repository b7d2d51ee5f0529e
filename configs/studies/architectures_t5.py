"""Encoder-decoder, shared layers, fewer layers, decoder or prefix decoder? Raffel et al. (2020), table 2.

    python -m train.ablate --study=configs/studies/architectures_t5.py --out=studies/architectures_t5

Five architectures of T5 blocks, each with denoising (`*_denoising`: i.i.d. noise, as in the paper's baseline) and with
language modeling (`*_lm`):

  encoder_decoder    4 layers in each stack
  shared             the same, with one set of layers for both stacks (model.share_stacks)
  half_layers        2 layers in each stack
  decoder            4 layers in one stack, causal
  prefix_decoder     the same, with inputs that see each other

Language modeling is prefix LM where the model reads inputs, and causal LM in `decoder`, as in the paper.

  accuracy, macro_f1    after the same fine-tuning: the counterpart of T5's fine-tuned GLUE and SuperGLUE scores
  continuation          of all: bits per byte of the second half of a text
  infilling_3, _8       of denoising: bits per byte of one hidden span, both sides visible

Why this is fair: all variants have the same width, learning rate, windows of 255 raw tokens (256 for causal LM) and
number of raw tokens, and each measure scores the same held-out bytes. A run's own loss is comparable within an
objective only. Where it is not fair: encoder_decoder has about twice the parameters of the other four (shared has in
addition cross-attention, and half_layers cross-attention in half as many layers). shared costs as many FLOPs as
encoder_decoder for the same text; half_layers costs about half. In denoising a decoder's row holds the inputs and the
targets that an encoder-decoder has in two rows, so decoders cost about as much as encoder_decoder. In language modeling
each of the two rows of an encoder-decoder has room for the whole text, so it costs about twice as much as a decoder.
The paper's numbers are fine-tuned scores after 34 billion tokens. Fine-tuning has the attention of training: decoder
reads the text from the left.
"""

from configs.studies import common
from configs.studies.base import raw_tokens, study, variant

_LAYOUTS = {
    "encoder_decoder": {"model.architecture": "encoder_decoder"},
    "shared": {"model.architecture": "encoder_decoder", "model.share_stacks": True},
    "half_layers": {"model.architecture": "encoder_decoder", "model.num_layers": 2},
    "decoder": {"model.architecture": "decoder_only", "data.bidirectional_inputs": False},
    "prefix_decoder": {"model.architecture": "decoder_only"},
}
_STACKS = ("encoder_decoder", "shared", "half_layers")
# Positions for the inputs and targets of 255 raw tokens.
_DENOISING_ROW = {"data.inputs_length": 335}

_GLUE_AND_SUPERGLUE = {
    "encoder_decoder_denoising": (83.28, 71.36),
    "shared_denoising": (82.81, 70.73),
    "half_layers_denoising": (80.88, 68.42),
    "decoder_denoising": (74.70, 55.02),
    "prefix_decoder_denoising": (81.82, 68.11),
    "encoder_decoder_lm": (79.56, 64.29),
    "shared_lm": (79.60, 63.50),
    "half_layers_lm": (78.67, 64.06),
    "decoder_lm": (73.78, 56.51),
    "prefix_decoder_lm": (79.68, 64.86),
}


def _variants() -> dict[str, dict]:
    variants = {}
    for name, layout in _LAYOUTS.items():
        row = {} if name in _STACKS else _DENOISING_ROW
        variants[f"{name}_denoising"] = variant(layout | row, config="configs/iid_denoising.py")
        objective = "clm" if name == "decoder" else "prefix_lm"
        variants[f"{name}_lm"] = variant(layout, config=f"configs/{objective}.py")
    return variants


def get_study():
    """Returns the study."""
    variants = _variants()
    return study(
        **common.described(__doc__, common.CLASSIFICATION_NOTE),
        config="configs/iid_denoising.py",
        baseline="encoder_decoder_denoising",
        variants=variants,
        budget=raw_tokens(1_000_000),
        measures={
            **common.classification(),
            **common.continuation(),
            **common.infilling(only=[name for name in variants if name.endswith("denoising")], spans=(3, 8)),
        },
        overrides=common.T5_BLOCKS
        | common.SHORT_RUNS
        | {"model.num_layers": 4, "loss.z_loss": 1e-4, "data.documents": "join", "data.inputs_length": 256},
        published=common.published_scores("table 2", _GLUE_AND_SUPERGLUE),
        varies=("data.targets_length",),  # as long as each objective's targets
    )
