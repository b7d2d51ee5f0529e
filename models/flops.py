"""Model FLOPs of a training step: what the mathematics needs, whatever the program recomputes. For MFU and roofline.

A product of [m, k] and [k, n] matrices is 2 m k n operations; the backward pass is two such products for each one
forward, so a step is three times its forward passes (Chowdhery et al. 2022, appendix B, counts the same). Counted, for
every position, padding included: the attention's four projections, scores and weighted values, the feed-forward, cross
attention, logits, the projections between embedding and model width, and the dense layers of heads. Causal attention is
*not* halved: scores are counted for every pair of positions, as in PaLM. Not counted: norms, softmax, biases, embedding
look-ups, the optimizer, and what remat computes again.

Each learner adds up its models' and heads' with the functions here (`forward_flops` in train/learners/learner.py).
"""

from models.config import ModelConfig


def hidden_flops(model: ModelConfig, inputs_length: int, targets_length: int) -> int:
    """Of one row's forward pass through the stacks, up to `hidden`.

    inputs_length: encoder positions, or those of the only stack; targets_length: decoder positions of an
    encoder-decoder, not read otherwise.
    """
    lengths = (inputs_length,)
    total = 0
    if model.architecture == "encoder_decoder":
        lengths = inputs_length, targets_length
        total += model.num_layers * _attention(model, targets_length, inputs_length)
    for length in lengths:
        total += model.num_layers * layer_flops(model, length)
        if model.embedding_width != model.d_model:
            total += dense_flops(length, model.embedding_width, model.d_model)
    return total


def layer_flops(model: ModelConfig, length: int) -> int:
    """Of one layer without cross attention at `length` positions that may all see each other."""
    matrices = 3 if model.mlp.startswith("gated_") else 2
    return _attention(model, length, length) + matrices * dense_flops(length, model.d_model, model.d_ff)


def logits_flops(model: ModelConfig, positions: int) -> int:
    """Of the prediction head, if it is BERT's, and the output table at as many positions."""
    has_head = model.prediction_head == "bert"
    head = dense_flops(positions, model.d_model, model.embedding_width) if has_head else 0
    width = model.embedding_width if has_head or model.tie_embeddings else model.d_model
    return head + dense_flops(positions, width, model.vocab_size)


def pooled_flops(model: ModelConfig, classes: int) -> int:
    """Of a pooler on one position, and a classifier of as many classes on that."""
    return dense_flops(1, model.d_model, model.d_model + classes)


def scored_length(model: ModelConfig, inputs_length: int, targets_length: int) -> int:
    """Positions of a row that are scored: the decoder's, or those of the only stack."""
    return targets_length if model.architecture == "encoder_decoder" else inputs_length


def dense_flops(positions: int, inputs: int, outputs: int) -> int:
    """Of a product with a [inputs, outputs] kernel."""
    return 2 * positions * inputs * outputs


def _attention(model: ModelConfig, queries: int, keys: int) -> int:
    width, kv_width = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    query_and_out = 2 * dense_flops(queries, model.d_model, width)
    key_and_value = 2 * dense_flops(keys, model.d_model, kv_width)
    return query_and_out + key_and_value + 4 * queries * keys * width  # scores, and the sum of values that they weigh
