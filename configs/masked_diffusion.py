r"""Masked diffusion (Sahoo et al. 2024; LLaDA, Nie et al. 2025) on a bidirectional encoder, with an exact bound.

    python -m train.main --config=configs/masked_diffusion.py
    python -m train.main --config=configs/masked_diffusion.py:next --config.model.architecture=decoder_only
    python -m train.main --config=configs/masked_diffusion.py:response --config.train.init_from=runs/masked_diffusion

`bits_per_byte` of the evaluation is the bound on the bits of the text, estimated from one draw of exactly k hidden
tokens for each held-out window, in every variant. It compares with that of a run whose windows are equal
(docs/comparing.md); those of configs/clm.py are not. To compare, take its model, a decoder that is then read in both
directions, and its rows:

    python -m train.main --config=configs/masked_diffusion.py --same_model=configs/clm.py --config.data.documents=pack

The objective and its weights are the papers' (objectives/masked_diffusion.py, with the deviations). Models and recipes
are not: sizes base and large are BERT's, post-norm, tied, with learned positions, BERT's optimizer and batches of 256
rows of 512 tokens, and no average of the parameters. Nearest to MDLM's code (kuleshov-group/mdlm), a DiT of BERT base's
width and depth, are

    python -m train.main --config=configs/masked_diffusion.py:base,bernoulli --config.model.norm_position=pre \
        --config.model.embedding_norm=False --config.model.positions=rope --config.model.tie_embeddings=False \
        --config.model.prediction_head=linear --config.data.inputs_length=1024 --config.train.batch_size=512 \
        --config.optimizer.schedule=constant --config.optimizer.learning_rate=3e-4 \
        --config.optimizer.warmup_steps=2500 --config.optimizer.weight_decay=0.0 --config.optimizer.eps=1e-8 \
        --config.train.ema_decay=0.9999

Sizes: tiny (default), base, large. Variants:
  same        default: exactly k of n tokens are hidden; a token is predicted at its own position
  next        it is predicted at the position that reads the token before it, as by a causal language model
  bernoulli   each token is hidden with probability p, uniform from 0.001 to 1, and has the loss weight 1 / p (LLaDA,
              which also has objective.random_length_share=0.01)
  cosine      the same with p = sin(pi t / 2), t uniform, and the weight of MD4 in continuous time (Shi et al. 2024)
  polynomial  the same with p = t^2
  cart        as bernoulli, predicted as in next, with weights from the distances to visible tokens (Dream, which starts
              from a CLM: --config.model.architecture=decoder_only --config.train.init_from=runs/clm)
  response    prompts and responses as in configs/sft.py; only the response is hidden, so the loss compares with SFT's
  padded_response  the same with bernoulli, each pair in a row that EOS fill, which are learnt as the response (LLaDA)
"""

from ml_collections import ConfigDict

from configs import architectures, base, mlm
from configs.sizes import DIAL

_COUNT = dict(name="masked_diffusion", alignment="same", noise="count", noise_schedule="linear", power=2.0, eps=1e-3)
_COUNT |= dict(random_length_share=0.0, cart_p=0.0)
_MD4 = _COUNT | dict(noise="bernoulli", eps=1e-4)
VARIANTS = {
    "same": _COUNT,
    "next": _COUNT | dict(alignment="next"),
    "bernoulli": _COUNT | dict(noise="bernoulli"),
    "cosine": _MD4 | dict(noise_schedule="cosine"),
    "polynomial": _MD4 | dict(noise_schedule="polynomial"),
    "cart": _COUNT | dict(alignment="next", noise="bernoulli", cart_p=0.1),
    "response": _COUNT | dict(name="response_diffusion", padded_length=0),
    "padded_response": _COUNT | dict(name="response_diffusion", noise="bernoulli", padded_length=0),  # see below
}


def get_config(preset: str = "tiny") -> ConfigDict:
    """Returns the experiment at a preset."""
    size, variant = base.split_preset(preset, architectures.BERT, VARIANTS)
    config = mlm.get_config(size)
    config.objective = ConfigDict(VARIANTS[variant])
    if "response" in variant:
        config.data.update(source="stdlib_functions", documents="whole", on_unusable="skip")
        if size in DIAL:
            config.data.inputs_length = 512
            config.train.batch_size //= 4
    if variant == "padded_response":  # to the length of a row
        config.objective.padded_length = config.data.inputs_length
    return config
