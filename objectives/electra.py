"""ELECTRA (Clark et al. 2020; google-research/electra): the discriminator detects tokens that the generator replaced.

The objective makes the generator's inputs. The training step makes the discriminator's inputs from the generator's
predictions (objectives/losses/replaced_tokens.py, learners/electra.py).
"""

import dataclasses
from typing import Annotated, ClassVar, Literal

from objectives.mlm import MLM


@dataclasses.dataclass(frozen=True)
class ELECTRA(MLM):
    """MLM, which trains the generator, and replaced token detection, which trains the discriminator.

    generator_size: d_model, heads and d_ff of the generator relative to the discriminator.
    generator_layers: the same for its layers. ELECTRA: 1.0; DeBERTaV3: 0.5, with a generator_size of 1.0.
    generator_weight, discriminator_weight: weights of the two losses, each a mean over its own tokens. ELECTRA: 1, 50.
    temperature: of sampling from the generator's predictions. The generator's loss does not use it.
    embedding_sharing: "shared": both models have one table of tokens, of positions and of types, and one norm of
        embeddings (ELECTRA). "gdes": a table of the discriminator is the generator's plus a difference of its own,
        which starts at 0, and the discriminator's loss does not change the generator's (gradient-disentangled
        embedding sharing, DeBERTaV3, He et al. 2021, arXiv 2111.09543). "none": each model has tables of its own.

    The other fields are MLM's. ELECTRA masks 85% of the selected tokens and keeps the others: mask_token_rate=0.85,
    random_token_rate=0.0.

    Deviations: positions are drawn without replacement, so their number is exact; the reference draws with replacement
    and merges repeated positions, which selects about 14% at a rate of 15%. A text is one segment, without token types.
    """

    generator_size: Annotated[float, "(0, 1]"]
    generator_layers: Annotated[float, "(0, 1]"]
    generator_weight: Annotated[float, "(0, inf)"]
    discriminator_weight: Annotated[float, "(0, inf)"]
    temperature: Annotated[float, "(0, inf)"]
    embedding_sharing: Literal["shared", "gdes", "none"]

    architectures: ClassVar = frozenset({"encoder_only"})
    auxiliary_weight_field: ClassVar = "discriminator_weight"
    learner: ClassVar = "electra"
    device_note: ClassVar = (
        "these are the generator's inputs; the discriminator reads the original text with the generator's samples at "
        "the scored positions, and each of its tokens is scored as original or replaced"
    )
