"""Differences between models of this project and of `transformers`, both ways.

Random weights of `transformers` are read as this project's parameters, and random parameters are written to a folder
that `from_pretrained` loads. Both compute in float32 on CPU, on rows of several lengths with padding, and are compared
at the positions that are not padding: the largest absolute difference of the logits and the difference of the losses
(`labels=` of transformers: masked or next tokens, targets of the decoder, replaced tokens, sentence pairs).
"""

import functools
import inspect
import json
import os
import tempfile
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from contract.vocab import Vocab
from huggingface.families import family_of_folder_config
from huggingface.family import Family
from models.config import ModelConfig
from models.heads import Classifier, DiscriminatorHead
from models.parameters import Params, bind_module
from models.transformer import bind
from objectives.losses.cross_entropy import LossOptions, cross_entropy, scored_tokens
from objectives.losses.replaced_tokens import replaced_token_loss
from objectives.losses.row_cross_entropy import Rows, class_cross_entropy

_PAIR_LABELS = np.array([0, 1, 1, 0])

_ENCODER = dict(
    vocab_size=61, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=40,
    max_position_embeddings=24, initializer_range=0.05,
)  # fmt: skip
_LLAMA = dict(
    vocab_size=61, hidden_size=32, intermediate_size=40, num_hidden_layers=3, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=24,
)  # fmt: skip
_GEMMA = _LLAMA | dict(head_dim=12, query_pre_attn_scalar=12)
_T5GEMMA = _GEMMA | dict(sliding_window=4)
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
    "gpt_neox": (
        "GPTNeoXForCausalLM",
        dict(vocab_size=61, hidden_size=32, intermediate_size=40, num_hidden_layers=3, num_attention_heads=2,
             max_position_embeddings=24, rope_parameters={"rope_type": "default", "partial_rotary_factor": 0.25}),
    ),
    "llama": ("LlamaForCausalLM", _LLAMA),
    "mistral": ("MistralForCausalLM", _LLAMA | dict(head_dim=12, sliding_window=None)),
    "qwen2": ("Qwen2ForCausalLM", _LLAMA),
    "qwen3": ("Qwen3ForCausalLM", _LLAMA | dict(head_dim=12)),
    "gemma": ("GemmaForCausalLM", _GEMMA),
    "gemma2": ("Gemma2ForCausalLM", _GEMMA | dict(sliding_window=4)),
    "gemma3": (
        "Gemma3ForCausalLM",
        _GEMMA | dict(sliding_window=4, layer_types=["sliding_attention", "sliding_attention", "full_attention"]),
    ),
    "t5gemma": ("T5GemmaForConditionalGeneration", dict(encoder=_T5GEMMA, decoder=_T5GEMMA, vocab_size=61)),
    "modernbert": (
        "ModernBertForMaskedLM",
        _ENCODER | dict(num_hidden_layers=5, local_attention=6, pad_token_id=1, bos_token_id=0, eos_token_id=2,
                        cls_token_id=0, sep_token_id=2),
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
    if class_name.startswith("T5F") and options.get("tie_word_embeddings") is False:
        # transformers 5 shares the tables of every new T5, and those of a folder only if they are equal.
        model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.shared.weight))
    for name, parameter in model.named_parameters():
        noise = torch.randn_like(parameter)
        is_matrix = parameter.ndim > 1
        is_scale = not is_matrix and name.endswith("weight")
        center = 0 if "Gemma" in class_name else 1  # where a scale is 1 plus the parameter
        parameter.data = center + 0.3 * noise if is_scale else 0.2 * noise
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


class Ours(NamedTuple):
    """A model of this project with its family, and the parameters."""

    family: Family
    model: ModelConfig
    params: Params


def read(torch_model: Any) -> Ours:
    """Returns a model of `transformers` as one of this project."""
    hf_config = torch_model.config.to_dict() | {"architectures": [type(torch_model).__name__]}
    tensors = {name: tensor.numpy() for name, tensor in torch_model.state_dict().items()}
    family = family_of_folder_config(hf_config)
    hf_config = family.flat(hf_config)
    model = family.model(hf_config, tensors, "float32")
    return Ours(family, model, family.to_params(tensors, model, hf_config))


def write(ours: Ours) -> Any:
    """Returns a model of this project as one of `transformers`, which `from_pretrained` loads from a folder.

    Raises ValueError if `from_pretrained` finds tensors that are missing, surplus or of another shape.
    """
    import transformers
    from safetensors.numpy import save_file

    hf_config = ours.family.huggingface_config(ours.model, VOCAB)
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
            json.dump(ours.family.nested(hf_config), file)
        tensors = ours.family.to_tensors(ours.params, ours.model, hf_config)
        save_file(tensors, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
        model_class = getattr(transformers, ours.family.architecture)
        torch_model, info = model_class.from_pretrained(folder, output_loading_info=True, dtype="float32")
    wrong = {name: keys for name, keys in info.items() if keys}
    if wrong:
        raise ValueError(f"{ours.family.architecture}.from_pretrained: {wrong}")
    return torch_model.eval()


def random_params(ours: Ours, seed: int) -> Ours:
    """Returns the same model with other parameters, all random and large enough to affect the logits."""
    rng = np.random.default_rng(seed)

    def draw(path, leaf):
        noise = rng.standard_normal(leaf.shape, np.float32)
        return 1 + 0.3 * noise if jax.tree_util.keystr(path).endswith("['scale']") else 0.2 * noise

    return ours._replace(params=jax.tree_util.tree_map_with_path(draw, ours.params))


@functools.partial(jax.jit, static_argnums=0)
def our_logits(model: ModelConfig, params: Params, batch: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    """Returns the logits of the Transformer or of the discriminator [B, L, ...], and those of sentence pairs [B, 2]."""
    transformer = bind(model, params["transformer"])
    hidden_BxLxD = transformer.hidden(batch)
    if "discriminator_head" in params:
        return {"logits": bind_module(DiscriminatorHead, model, params=params["discriminator_head"])(hidden_BxLxD)}
    logits = {"logits": transformer.logits(hidden_BxLxD)}
    if "pair_classifier" in params:
        logits["pairs"] = bind_module(Classifier, model, 2, params=params["pair_classifier"])(hidden_BxLxD[:, 0])
    return logits


def their_logits(torch_model: Any, inputs: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], float]:
    """Returns the logits of `transformers`, with names as in `our_logits`, and its loss."""
    import torch

    arguments = {name: torch.tensor(value) for name, value in inputs.items()}
    if "discriminator" in " ".join(name for name, _ in torch_model.named_children()):
        arguments["labels"] = (arguments["labels"] >= 0).long()
    if "next_sentence_label" in inspect.signature(torch_model.forward).parameters:
        arguments["next_sentence_label"] = torch.tensor(_PAIR_LABELS)
    encoder = torch_model.get_encoder() if torch_model.config.model_type == "t5gemma" else None
    if encoder is not None:  # transformers 5 counts the ends of its window in; see huggingface/gemma.py
        encoder.config.sliding_window -= 1
    with torch.no_grad():
        output = torch_model(**arguments)
    if encoder is not None:
        encoder.config.sliding_window += 1
    names = {"logits": "logits", "prediction_logits": "logits", "seq_relationship_logits": "pairs"}
    return {names[name]: value.numpy() for name, value in output.items() if name in names}, float(output.loss)


def our_loss(ours: Ours, logits: Mapping[str, jax.Array], inputs: Mapping[str, np.ndarray]) -> float:
    """Returns the mean loss of `labels`, computed with the losses of this project."""
    labels = inputs["labels"]
    if "discriminator_head" in ours.params:
        weights = inputs["attention_mask"].astype(np.float32)
        sums = replaced_token_loss(logits["logits"], labels >= 0, weights)
        return float(sums.loss_sum / sums.weight_sum)
    if ours.model.architecture == "decoder_only":  # transformers shifts the labels
        labels = np.concatenate([labels[:, 1:], np.full_like(labels[:, :1], -100)], axis=1)
    batch = {
        "decoder_target_tokens": jnp.asarray(np.maximum(labels, 0)),
        "decoder_loss_weights": jnp.asarray(labels >= 0, jnp.float32),
        "example_source": jnp.zeros(labels.shape, jnp.int32),
    }
    sums = cross_entropy(logits["logits"], scored_tokens(batch), LossOptions(1, 0.0, 0.0))
    loss = float(sums.loss_sum / sums.weight_sum)
    if "pairs" in logits:
        rows = Rows(jnp.ones(len(_PAIR_LABELS)), jnp.zeros(len(_PAIR_LABELS), jnp.int32))
        pairs = class_cross_entropy(logits["pairs"], jnp.asarray(_PAIR_LABELS), rows, num_groups=1)
        loss += float(pairs.loss_sum / pairs.weight_sum)
    return loss


def compare(ours: Ours, torch_model: Any, seed: int) -> dict[str, Any]:
    """Returns the differences, and the largest logit."""
    architecture = ours.model.architecture
    inputs = random_inputs(torch_model.config.to_dict(), architecture, seed)
    theirs, their_loss = their_logits(torch_model, inputs)
    logits = our_logits(ours.model, ours.params, batch_of(inputs, architecture))
    mask = {"logits": inputs.get("decoder_attention_mask", inputs["attention_mask"]) > 0, "pairs": ...}
    differences = [np.abs(np.asarray(logits[name]) - theirs[name])[mask[name]].max() for name in theirs]
    return {
        "max_abs_difference": float(max(differences)),
        "max_abs_logit": float(max(np.abs(value[mask[name]]).max() for name, value in theirs.items())),
        "loss_difference": abs(our_loss(ours, logits, inputs) - their_loss),
    }
