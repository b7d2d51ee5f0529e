r"""Is CLM or masked diffusion better on little text, and what do dropout, weight decay and masked inputs do for CLM?

    shuf --random-source=english/english.jsonl english/english.jsonl > english/shuffled.jsonl
    tail -n 600 english/shuffled.jsonl > english/heldout.jsonl
    for documents in 400 43 8; do
      head -n $documents english/shuffled.jsonl > english/first_$documents.jsonl
      python -m train.ablate --study=configs/studies/clm_vs_diffusion.py \
          --config.data.path=english/first_$documents.jsonl --out=studies/clm_vs_diffusion_$documents
    done

A decoder of 0.35M parameters reads 500,000 tokens of English (configs/studies/english.py, which says how its files are
made). The folders differ in how much text these tokens are: 400 documents have 487,000 tokens, 43 have 49,000 and 8
have 5,300, so they are read about 1, 10 and 95 times. All folders hold out the same 600 documents.

  clm                 configs/clm.py
  clm_dropout         with dropout of 0.1
  clm_weight_decay    with weight decay of 0.1, of all matrices, the table of tokens too
  clm_masked_inputs   reads masks in place of 15% of the tokens in training, and of none in evaluations
  clm_masked_uniform  the same, at rates drawn from 0 to 1 for each text, as masked diffusion draws them
  masked_diffusion    reads in both directions

  bits_per_byte       of the held-out text at the end: exact for CLM, and a bound for masked diffusion

Prabhudesai et al. (2025, arXiv 2507.15857) and Ni et al. (2025, arXiv 2511.03276) find that masked diffusion is better
than CLM where text is repeated often enough, and Ni et al. that noise of inputs or parameters helps CLM without closing
the gap. Gao et al. (2025, arXiv 2510.04071) find that the masks of inputs are most of it, and that dropout and weight
decay help CLM similarly.

The value is that of the last step, not the best one on the way, which the curves show. All variants have one learning
rate, which is tuned for none. The bound exceeds the likelihood of masked diffusion by an unknown amount. Ni et al.
train models of up to 8B parameters.
"""

from configs.studies import common, english
from configs.studies.base import heldout_loss, raw_tokens, study, variant

_MODEL = {**english.SIZES["xs"], "model.architecture": "decoder_only"}


def get_study():
    """Returns the study."""
    return study(
        **common.described(__doc__),
        config="configs/clm.py",
        baseline="clm",
        variants={
            "clm": variant(_MODEL),
            "clm_dropout": variant({**_MODEL, "model.dropout_rate": 0.1}),
            "clm_weight_decay": variant(
                {**_MODEL, "optimizer.weight_decay": 0.1, "optimizer.no_decay": ("norm", "bias")}
            ),
            "clm_masked_inputs": variant(_MODEL, config="configs/masked_inputs.py"),
            "clm_masked_uniform": variant(_MODEL, config="configs/masked_inputs.py:uniform"),
            "masked_diffusion": variant(_MODEL, config="configs/masked_diffusion.py"),
        },
        budget=raw_tokens(500_000),
        measures={"bits_per_byte": heldout_loss(metric="bits_per_byte")},
        overrides=english.MODEL
        | {
            "data.path": f"{english.FOLDER}/first_8.jsonl",
            "data.heldout_path": f"{english.FOLDER}/heldout.jsonl",
            "train.batch_size": 4,  # 980 updates
            "train.eval_windows": 256,
        },
        same_model="configs/clm.py",
        seeds=3,
    )
