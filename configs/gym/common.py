"""What the configs of the gym have in common: the objectives that a preset names, and one small model for all of them.

Presets:
  clm                     the next token, of prompt and answer
  sft                     the next token, of the answer alone
  teacherless             all of the answer at once, from the prompt and masks, read causally
  prefix_lm               the rest of an instance after a random place
  span_corruption         one span, as long as an answer, at the end of an instance
  span_corruption_roll    the same span at a random place (random_roll)
  multi_token_prediction  the next four tokens
  future_summary          the next token, and the order of those after it (TOP)
  next_latent             the next token, and the next three states (NextLat, on star graphs)
  sft_multi_token_prediction, sft_top, sft_next_latent
                          the same three, of the answer alone
  sft_next_latent_kl      NextLat of the answer alone, without the loss of the states
  reverse, reverse_word   the next token, with half of the instances reversed, by tokens or with names kept whole
  mlm, mlm_50             BERT's masks: 15% of the tokens, or 50%
  any_order               the next token in an order that is drawn for each instance (sigma-GPT)
  masked_diffusion        masks for a number of tokens that is drawn for each instance, weighted as a bound
  response_diffusion      the same, of the answer alone
  mlm_u                   masks for a share of the tokens that is drawn for each instance, uniform in [0, 1]
"""

from collections.abc import Callable
from typing import Any

from ml_collections import ConfigDict

from configs import (
    architectures,
    base,
    clm,
    future_summary,
    masked_diffusion,
    mlm,
    multi_token_prediction,
    next_latent,
    prefix_lm,
    reverse,
    sft,
    sigma_gpt,
    span_corruption,
    teacherless,
)

_SPANS = span_corruption.get_config().objective.to_dict()
_MLM = {"name": "mlm", **mlm.VARIANTS["bert"]}
OBJECTIVES: dict[str, dict[str, Any]] = {
    "clm": clm.get_config().objective.to_dict(),
    "sft": sft.get_config().objective.to_dict(),
    "teacherless": teacherless.get_config().objective.to_dict(),
    "prefix_lm": prefix_lm.get_config().objective.to_dict(),
    "span_corruption": _SPANS,
    "span_corruption_roll": _SPANS | {"random_roll": True},
    "multi_token_prediction": multi_token_prediction.get_config().objective.to_dict(),
    "future_summary": future_summary.get_config("order").objective.to_dict(),
    "next_latent": next_latent.get_config("both").objective.to_dict() | {"horizon": 3},
    "sft_multi_token_prediction": multi_token_prediction.get_config("response").objective.to_dict(),
    "sft_top": future_summary.get_config("response").objective.to_dict(),
    "sft_next_latent": next_latent.get_config("response").objective.to_dict() | {"horizon": 3},
    "sft_next_latent_kl": next_latent.get_config("response").objective.to_dict() | {"horizon": 3, "latent_weight": 0.0},
    "reverse": reverse.get_config("token").objective.to_dict(),
    "reverse_word": reverse.get_config("word").objective.to_dict(),
    "mlm": _MLM,
    "mlm_50": _MLM | {"mask_rate": 0.5},
    "any_order": sigma_gpt.get_config("shuffled").objective.to_dict(),
    "masked_diffusion": masked_diffusion.get_config().objective.to_dict(),
    "response_diffusion": masked_diffusion.get_config("response").objective.to_dict(),
    "mlm_u": {"name": "mlm", **mlm.VARIANTS["mlm_u"]},
}


def gym(path: str, *, length: int, answer: int, steps: int, batch_size: int = 64) -> Callable[[str], ConfigDict]:
    """Returns get_config of a task: a preset, one of OBJECTIVES, -> the experiment that trains it on the task.

    Args:
      path: the task and its sizes, data.path.
      length, answer: tokens of the longest instance, and those of them that span corruption hides. A row has 8 more
        positions, for the special tokens of every objective.
      steps: updates.
      batch_size: rows of a batch; tasks of few instances learn in fewer passes from small ones.
    """

    def get_config(preset: str = "clm") -> ConfigDict:
        """Returns the experiment of an objective. Raises ValueError for any other preset, with those that exist."""
        if preset not in OBJECTIVES:
            raise ValueError(f"unknown preset {preset!r}: use {', '.join(map(repr, OBJECTIVES))}")
        config = base.get_config()
        config.objective = ConfigDict(OBJECTIVES[preset])
        if "span" in preset:
            config.objective.update(noise_density=answer / length, mean_noise_span_length=float(answer))
        config.data.update(source="gym", path=path, documents="split")
        if preset in ("teacherless", "response_diffusion") or preset.startswith("sft"):
            config.data.documents = "whole"
        config.data.update(bidirectional_inputs=preset == "prefix_lm" or "span" in preset, inputs_length=length + 8)
        config.model.update(architectures.LLAMA["7b"] | base.TINY_SIZES | {"num_layers": 2})
        config.model.architecture = "encoder_only" if "mlm" in preset or "diffusion" in preset else "decoder_only"
        config.model.target_positions = preset == "any_order"
        config.loss.z_loss = 0.0
        config.train.update(batch_size=batch_size, steps=steps, log_every=max(steps // 20, 1))
        config.train.eval_every = config.train.checkpoint_every = max(steps // 4, 1)
        return config

    return get_config
