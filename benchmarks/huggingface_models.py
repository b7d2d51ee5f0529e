"""Small models of `transformers` with random weights, their inputs, and the same inputs as batches of this project."""

from typing import Any

import numpy as np

from contract.vocab import Vocab

_ENCODER = dict(
    vocab_size=61, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=40,
    max_position_embeddings=24, initializer_range=0.05,
)  # fmt: skip
_T5 = dict(
    vocab_size=61, d_model=32, d_kv=6, d_ff=40, num_layers=3, num_heads=4, relative_attention_num_buckets=8,
    relative_attention_max_distance=12, decoder_start_token_id=0,
)  # fmt: skip
_BART_SIZES = {"attention_heads": 4, "layers": 3, "ffn_dim": 40}
_BART = {f"{stack}_{name}": size for stack in ("encoder", "decoder") for name, size in _BART_SIZES.items()}
_IDS = dict(pad_token_id=1, bos_token_id=0, eos_token_id=2)

# Name -> the class of transformers and the options of its configuration.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "t5_v1_0": ("T5ForConditionalGeneration", _T5),
    "t5_v1_1": ("T5ForConditionalGeneration", _T5 | dict(feed_forward_proj="gated-gelu", tie_word_embeddings=False)),
    "bert": ("BertForMaskedLM", _ENCODER),
    "roberta": ("RobertaForMaskedLM", _ENCODER | dict(type_vocab_size=1, max_position_embeddings=26) | _IDS),
    "gpt2": ("GPT2LMHeadModel", dict(vocab_size=61, n_positions=24, n_embd=32, n_layer=3, n_head=4)),
    "llama": (
        "LlamaForCausalLM",
        dict(vocab_size=61, hidden_size=32, intermediate_size=40, num_hidden_layers=3, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=24),
    ),
    "bart": (
        "BartForConditionalGeneration",
        dict(vocab_size=61, d_model=32, max_position_embeddings=24, decoder_start_token_id=2) | _BART | _IDS,
    ),
    "electra": ("ElectraForPreTraining", _ENCODER | dict(embedding_size=20)),
    "electra_generator": ("ElectraForMaskedLM", _ENCODER | dict(embedding_size=20)),
    "bert_pretraining": ("BertForPreTraining", _ENCODER),
}  # fmt: skip

# The special ids of this project's models that are written.
VOCAB = Vocab(
    size=61, pad=0, eos=1, unk=2, mask=3, cls=4, sep=5, bos=6, modes=(), sentinel_ids=(), own_names=(), content_start=7,
    content_end=61, marks=bytes(61),
)  # fmt: skip


def random_model(class_name: str, options: dict[str, Any], seed: int) -> Any:
    """Returns a torch module of the class, whose tensors are all random and large enough to affect the logits."""
    import torch
    import transformers

    torch.manual_seed(seed)
    model_class = getattr(transformers, class_name)
    model = model_class(model_class.config_class(**options)).eval()
    if class_name.startswith("T5") and options.get("tie_word_embeddings") is False:
        # transformers 5 shares the tables of every new T5, and those of a folder only if they are equal.
        model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.shared.weight))
    for name, parameter in model.named_parameters():
        noise = torch.randn_like(parameter)
        is_matrix = parameter.ndim > 1
        is_scale = not is_matrix and name.endswith("weight")
        parameter.data = 1 + 0.3 * noise if is_scale else 0.2 * noise
    return model


def random_inputs(hf_config: dict[str, Any], architecture: str, seed: int) -> dict[str, np.ndarray]:
    """Returns arguments of the class's `forward`, int64 [4, 14]: rows of several lengths with padding at the end.

    The encoder's rows of an encoder-decoder and the decoder's rows have different lengths.
    """
    rng, sizes = np.random.default_rng(seed), (4, 14)
    vocab_size, pad = hf_config["vocab_size"], hf_config.get("pad_token_id") or 0

    def rows(lengths: list[int]) -> tuple[np.ndarray, np.ndarray]:
        mask = (np.arange(sizes[1]) < np.array(lengths)[:, None]).astype(np.int64)
        return np.where(mask, rng.integers(3, vocab_size, sizes), pad), mask

    inputs = dict(zip(("input_ids", "attention_mask"), rows([14, 9, 5, 1]), strict=True))
    if architecture == "encoder_decoder":
        inputs |= dict(zip(("decoder_input_ids", "decoder_attention_mask"), rows([3, 14, 8, 6]), strict=True))
    elif hf_config.get("type_vocab_size", 1) > 1:
        inputs["token_type_ids"] = rng.integers(0, hf_config["type_vocab_size"], sizes)
    mask = inputs.get("decoder_attention_mask", inputs["attention_mask"])
    is_scored = (rng.random(sizes) < 0.6) & (mask > 0)
    inputs["labels"] = np.where(is_scored, rng.integers(3, vocab_size, sizes), -100)
    return inputs


def batch_of(inputs: dict[str, np.ndarray], architecture: str) -> dict[str, np.ndarray]:
    """Returns the batch (contract/batch.py) of `random_inputs`, each row one segment, without targets."""
    sides = {"encoder": "", "decoder": "decoder_"} if architecture == "encoder_decoder" else {"encoder": ""}
    if architecture == "decoder_only":
        sides = {"decoder": ""}
    batch = {}
    for side, prefix in sides.items():
        tokens, mask = inputs[f"{prefix}input_ids"], inputs[f"{prefix}attention_mask"]
        batch |= {
            f"{side}_input_tokens": tokens.astype(np.int32),
            f"{side}_segment_ids": mask.astype(np.int32),
            f"{side}_positions": (np.maximum(mask.cumsum(1) - 1, 0)).astype(np.int32),
        }
    if architecture == "decoder_only":
        batch["decoder_bidirectional_mask"] = np.zeros_like(inputs["input_ids"], bool)
    if "token_type_ids" in inputs:
        batch["encoder_token_types"] = inputs["token_type_ids"].astype(np.int32)
    return batch
