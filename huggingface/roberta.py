"""RoBERTa: RobertaForMaskedLM of `transformers`."""

from typing import Any, ClassVar

from contract.vocab import Vocab
from huggingface.bert import Encoder
from models.config import ModelConfig


class RobertaMaskedLM(Encoder):
    """RobertaForMaskedLM. Its head always has the exact GELU. Positions count from pad_token_id + 1, as in fairseq."""

    architecture = "RobertaForMaskedLM"
    model_type = "roberta"
    prefix = "roberta."
    defaults: ClassVar = Encoder.defaults | {"vocab_size": 50265, "pad_token_id": 1}
    # A model with the exact GELU and more token types is written as BertForMaskedLM, the more common of the two.
    fields: ClassVar = Encoder.fields | {"mlp": ("exact_gelu",), "num_token_types": (0, 1)}
    output_table = "lm_head.decoder.weight"
    head_names = ("lm_head.dense", "lm_head.layer_norm", "lm_head.bias", ("lm_head.decoder.bias",))

    def extra_positions(self, pad: int) -> int:
        return pad + 1

    def _huggingface_config(self, model: ModelConfig, vocab: Vocab) -> dict[str, Any]:
        ends = {"bos_token_id": vocab.cls, "eos_token_id": vocab.sep}
        return super()._huggingface_config(model, vocab) | ends
