"""Model FLOPs of a forward pass over one row: the operations of its matrix products, for MFU and rooflines.

A product of [m, k] and [k, n] matrices is 2 m k n floating-point operations. Counted, for every position including
padding: attention's four projections, its scores and its weighted sums of values, the feed-forward block,
cross-attention, the logits, the projections between embedding width and d_model, and the dense layers of heads. Causal
attention is *not* halved: scores are counted for every pair of positions, as in PaLM (Chowdhery et al. 2022, appendix
B), and so are those of local attention. Not counted: norms, softmax, biases, embedding look-ups, sigma-GPT's
projection of rotated offsets, and operations that remat repeats.

A learner sums these functions over its models and heads (learners/learner.py, `Learner.forward_flops`). The sum
times three gives the FLOPs of a training step: the backward pass has two products for each product of the forward pass.

All lengths and numbers of positions are of one row; all results are ints.
"""

from models.config import ModelConfig


def hidden_flops(model: ModelConfig, inputs_length: int, targets_length: int) -> int:
    """Returns the FLOPs of `Transformer.hidden`: all stacks, without the logits.

    inputs_length: positions of the encoder, or of the only stack. targets_length: decoder positions of an
    encoder-decoder; ignored for other architectures.
    """
    total = stack_flops(model, inputs_length)
    if model.architecture == "encoder_decoder":
        cross_attention = _attention_flops(model, targets_length, inputs_length)
        if model.merged_attention:  # the queries and the output projection are those of self-attention
            cross_attention -= 2 * dense_flops(targets_length, model.d_model, model.num_heads * model.head_dim)
        total += stack_flops(model.of_decoder, targets_length) + model.of_decoder.num_layers * cross_attention
    return total


def stack_flops(model: ModelConfig, length: int) -> int:
    """Returns the FLOPs of a stack without cross-attention, embeddings' projection included, at `length` positions."""
    is_factorized = model.embedding_width != model.d_model
    projection = dense_flops(length, model.embedding_width, model.d_model) if is_factorized else 0
    return model.num_layers * layer_flops(model, length) + projection


def layer_flops(model: ModelConfig, length: int) -> int:
    """Returns the FLOPs of one layer without cross-attention at `length` positions."""
    mlp_kernels = 3 if model.mlp.startswith("gated_") else 2
    return _attention_flops(model, length, length) + mlp_kernels * dense_flops(length, model.d_model, model.d_ff)


def logits_flops(model: ModelConfig, positions: int) -> int:
    """Returns the FLOPs of `Transformer.logits`: BERT's prediction head if any, and the output table."""
    has_head = model.prediction_head == "bert"
    head = dense_flops(positions, model.d_model, model.embedding_width) if has_head else 0
    width = model.embedding_width if has_head else model.d_model
    return head + dense_flops(positions, width, model.vocab_size)


def pooled_flops(model: ModelConfig, classes: int) -> int:
    """Returns the FLOPs of a pooler at one position and a dense layer with `classes` outputs; 0: of the pooler only."""
    return dense_flops(1, model.d_model, model.d_model + classes)


def scored_length(model: ModelConfig, inputs_length: int, targets_length: int) -> int:
    """Returns the number of positions that have logits: those of the decoder, or of the only stack."""
    return targets_length if model.architecture == "encoder_decoder" else inputs_length


def dense_flops(positions: int, inputs: int, outputs: int) -> int:
    """Returns the FLOPs of a product with an [inputs, outputs] kernel at `positions` positions."""
    return 2 * positions * inputs * outputs


def _attention_flops(model: ModelConfig, queries: int, keys: int) -> int:
    """Returns the FLOPs of one attention module: four projections, scores, and weighted sums of values."""
    width, kv_width = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    query_and_out = 2 * dense_flops(queries, model.d_model, width)
    key_and_value = 2 * dense_flops(keys, model.d_model, kv_width)
    scores_and_sums = 2 * (2 * queries * keys * width)
    return query_and_out + key_and_value + scores_and_sums
