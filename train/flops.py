"""Model FLOPs of a training step: what the mathematics needs, whatever the program recomputes. For MFU and roofline."""

from models.config import ModelConfig


def train_step_flops(model: ModelConfig, *, rows: int, inputs_length: int, targets_length: int) -> float:
    """Floating-point operations of one forward and backward pass over `rows` rows, padding included.

    A product of [m, k] and [k, n] matrices is 2 m k n operations; the backward pass is two such products for each one
    forward, so the whole is three times the forward pass (Chowdhery et al. 2022, appendix B, counts the same). Counted:
    the attention's four projections, scores and weighted values, the feed-forward, cross attention, logits and, where
    there are any, the projections between embedding and model width and BERT's prediction head. Causal attention is
    *not* halved: scores are counted for every pair of positions, as in PaLM. Not counted: norms, softmax, biases,
    embedding look-ups, the optimizer, and what remat computes again.

    inputs_length: encoder positions, or those of the only stack; targets_length: decoder positions of an
    encoder-decoder, not read otherwise.
    """
    encoder, decoder = inputs_length * model.has_encoder, inputs_length * model.has_decoder
    if model.architecture == "encoder_decoder":
        decoder = targets_length
    forward = 0.0
    for length in (encoder, decoder):
        forward += model.num_layers * (_attention(model, length, length) + _mlp(model, length))
    if model.architecture == "encoder_decoder":
        forward += model.num_layers * _attention(model, decoder, encoder)
    return 3.0 * rows * (forward + _logits(model, decoder or encoder))


def _attention(model: ModelConfig, queries: int, keys: int) -> float:
    width, kv_width = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    projections = 2 * model.d_model * (2 * width * queries + 2 * kv_width * keys)  # query and out; key and value
    return projections + 4 * queries * keys * width  # scores, and the sum of values that they weigh


def _mlp(model: ModelConfig, length: int) -> float:
    matrices = 3 if model.mlp.startswith("gated_") else 2
    return 2 * length * matrices * model.d_model * model.d_ff


def _logits(model: ModelConfig, length: int) -> float:
    head = 2 * length * model.d_model * model.embedding_width if model.prediction_head == "bert" else 0
    return head + 2 * length * model.embedding_width * model.vocab_size
