"""The fields that every experiment has, with their defaults, and helpers for presets and for tables of denoisers.

An experiment calls `get_config()` and changes the fields that differ. A field keeps the type of its default value. On
the command line a tuple is written as in --config.optimizer.no_decay="('norm', 'bias')".
"""

from typing import Any

from ml_collections import ConfigDict

from configs.sizes import DIAL, use_dial


def get_config() -> ConfigDict:
    """Returns the defaults: a `tiny` T5 v1.1 encoder-decoder on the standard library's source text."""
    config = OPTIONAL.copy_and_resolve_references()
    config.seed = 0  # seeds the initial parameters, the order of the data and every random draw in training
    # The dtype of the computation: "float32", "bfloat16", "float16"; parameters are always float32. TPUs multiply
    # float32 in bfloat16 by JAX's default.
    config.precision = "float32"

    # The corpus: "stdlib" and "stdlib_functions" are the Python standard library's source text and its documented
    # functions; "gym": synthetic tasks (docs/gym.md). "text", "jsonl", "parquet", "array_record", "tfds" and "hf" read
    # data.path. See docs/data.md.
    config.data.source = "stdlib"
    # gym: "task" or "task:size=4,..."; tfds: "name/config:version"; hf: a dataset of the Hugging Face Hub,
    # "name/config@revision:split", or a folder of this machine; the others: files, folders or globs, separated by
    # commas.
    config.data.path = ""
    # The corpus' own held-out text, which replaces the split: tfds, hf: the name of a split; the others: as path.
    config.data.heldout_path = ""
    # What of a text is a document: "file" (the whole text), "line", "paragraph" (between blank lines). A text is a file
    # of source "text", and a row or record of the others; JSON lines are not cut.
    config.data.document_per = "file"
    # The key of the text in a JSON object, a column's or a feature's name. array_record: "" for records of text.
    config.data.text_key = "text"
    config.data.on_unreadable = "error"  # for unreadable files, and invalid lines, rows and records: "error" or "skip"
    # Several corpora in one run: a table of `corpus(...)`, by name, whose fields replace those above. Empty: the one
    # corpus of the fields above. See docs/data.md and configs/multitask.py.
    config.data.sources = ConfigDict()
    config.data.mix_by = "example"  # what rates are shares of: "example" or raw "token", as objective.mix_by
    # "byte", or the path of a SentencePiece .model file or of a Hugging Face tokenizer.json (docs/tokenizers.md).
    config.data.tokenizer = "byte"
    config.data.num_sentinels = 100  # sentinels in the vocabulary: the model's own (<extra_id_0>, ...) if it has any
    # Special tokens that the tokenizer's model lacks. True: they get ids after the model's own. False: they do not
    # exist, pad is then EOS, and an objective that needs another one is refused.
    config.data.append_special_tokens = True
    # The token that a decoder reads before the first token of each segment: "pad" (T5), "bos" (Llama), "eos" (BART's
    # </s>, GPT-2's <|endoftext|>). train.convert sets the one of the folder.
    config.data.decoder_start_token = "pad"
    config.data.mode_tokens = ("[R]", "[S]", "[X]")  # UL2's paper; its released checkpoints: [NLU], [S2S], [NLG]
    config.data.inputs_length = 128  # tokens of a row: the encoder's positions, or all positions of a single stack
    config.data.targets_length = 128  # tokens of a row of an encoder-decoder's decoder; not read by a single stack

    # From documents to rows: the text is read in windows, which are runs of raw tokens, and windows are put into rows.
    #   documents         what a window does at the end of a document
    #   examples_per_row  how many windows a row holds
    #   packing           how the windows of a row share its positions
    #
    # documents: "join"   A window continues into the next document. It is one example (T5).
    #            "pack"   The same windows, but each document's piece of a window is a separate example. This does not
    #                     set `packing`.
    #            "split"  A window ends with its document, so a document's last window may be short. It is one example.
    #            "whole"  No document is cut. A row holds as many documents as fit, and each is an example.
    config.data.documents = "join"
    # examples_per_row: windows, 1 or more; 1 with documents="whole". Examples in the same row never see each other.
    config.data.examples_per_row = 1
    # packing: "equal"    A row of M windows gives each of them 1/M of its positions. Padding fills the rest.
    #          "planned"  The lengths of windows, and the denoisers in a row, are chosen so that rows are full. Needs
    #                     examples_per_row of 2 or more, documents="join" or "split", and in a mixture constant weights.
    config.data.packing = "equal"

    # Documents that cannot be used, because they are longer than a row (documents="whole") or have none of
    # objective.classes: "error", or "skip" to exclude them.
    config.data.on_unusable = "error"
    config.data.bidirectional_inputs = True  # decoder-only: True: inputs see each other (prefix LM); False: causal
    # The split into training and held-out text. It depends on these fields and on each unit's contents alone, so runs
    # with any objective, seed and windows over a corpus hold out the same text (data/windows/split.py).
    config.data.heldout_fraction = 0.1  # expected share of the units that is held out; not read with heldout_path
    config.data.split_seed = 0  # seeds the choice of the held-out units and windows, independent of `seed`
    # The unit of the split: "file" (a row or record of parquet, array_record, tfds and hf), "document", "label"; or
    # "auto": "file", but "document" for jsonl and a single file.
    config.data.split_by = "auto"
    # Which text evaluations read: "test", the held-out text of the fields above; or "validation", heldout_fraction of
    # the units that "test" trains on, to choose hyperparameters without the test text. A run of "validation" trains on
    # neither. With heldout_path that is the test text, and the validation text is cut from data.path.
    config.data.heldout = "test"
    config.data.cache_dir = "~/.cache/cloze"  # folder of the token stores: corpora as token ids; or gs:// or s3://
    # Where cache_dir is in a bucket: False: each host copies a token store once; True: it copies the columns of the
    # documents, and reads the tokens of each batch by range (docs/running.md).
    config.data.read_by_range = False
    config.data.reader_threads = 2  # threads that make batches
    config.data.prefetch_batches = 16  # batches made in advance; of small batches as many by each thread

    config.model.architecture = "encoder_decoder"  # or "decoder_only", "encoder_only"
    config.model.num_layers = 2  # of each stack, but for num_decoder_layers: an encoder-decoder has twice as many
    config.model.d_model = 128  # width of the states between layers
    config.model.num_heads = 4  # query heads
    config.model.num_kv_heads = 4  # key/value heads; fewer than num_heads: grouped-query attention
    config.model.head_dim = 32  # width of one head
    config.model.d_ff = 256  # hidden width of the feed-forward block
    # Or "gated_silu", "silu", "relu"; "gelu" is the tanh formula, "exact_gelu" and "gated_exact_gelu" the exact one.
    config.model.mlp = "gated_gelu"
    config.model.positions = "relative"  # T5's relative position bias; or "rope", "learned", "none"
    config.model.relative_num_buckets = 32  # positions="relative": buckets of distances
    config.model.relative_max_distance = 128  # positions="relative": tokens; longer distances share a bucket
    config.model.rope_theta = 10000.0  # positions="rope": base of the wavelengths
    # positions="learned": rows of the table, one for each position of a row; 0: as many as the longest row has. An
    # encoder-decoder has a table for each stack (BART), and one for both with share_stacks.
    config.model.max_length = 0
    config.model.norm = "rms"  # RMSNorm, or "layer": LayerNorm
    config.model.norm_position = "pre"  # pre-norm, or "post": post-norm
    config.model.norm_epsilon = 1e-6  # added under the square root
    config.model.use_bias = False  # in dense layers, LayerNorm and the "bert" prediction head
    config.model.tie_embeddings = False  # whether the output table is the input table
    config.model.scale_attention = False  # divide scores by sqrt(head_dim); T5 scales the initial query kernel instead
    # Rows of the embedding and the output table. 0: the number of ids, rounded up to a multiple of 128, so that mesh
    # axes divide it. A model from a Hugging Face folder has the folder's number: further rows would change its losses.
    config.model.vocab_size = 0
    config.model.prediction_head = "linear"  # or "bert": dense, the activation of mlp, norm, then the output table
    # "t5"; "normal": N(0, initializer_range) for every matrix; "gpt2": the same, except for the output kernels of
    # attention and MLP, which have a standard deviation of initializer_range / sqrt(2 num_layers).
    config.model.initializer = "t5"
    config.model.initializer_range = 0.02  # standard deviation of "normal" and "gpt2"
    config.model.dropout_rate = 0.0  # share of the elements that are set to 0 in training, in [0, 1); 0: off
    # True: all positions of a row share one dropout mask, and all queries that of the attention probabilities (T5).
    # False: every element has its own draw (BERT, GPT-2, BART).
    config.model.dropout_broadcast_positions = True
    # Or "xla"; "cudnn" (NVIDIA GPUs); "splash" (TPUs: masks by segments and causality) or "flash" (TPUs: also relative
    # positions, prefixes and attention orders). Only "xla" has dropout of the attention probabilities. See
    # models/kernels.py.
    config.model.attention = "auto"
    # What the backward pass recomputes: "none", "dots", "full" (models/layers.py). "auto" is resolved at the start of a
    # run, together with train.grad_accum_steps=0, to what fits the memory of its devices (run/memory.py).
    config.model.remat = "none"

    config.loss = ConfigDict()
    config.loss.z_loss = 1e-4  # coefficient of log(Z)^2, where Z is the softmax's denominator; 0: off
    config.loss.label_smoothing = 0.0  # share of the target probability that is spread over the vocabulary, in [0, 1)
    config.loss.chunk_size = 0  # positions of a row whose logits are in memory at the same time; 0: all

    # "rms_scaled_adamw", "adamw", "adafactor", "lion", "muon", "lamb" or "stable_adamw" (experiment/optimizer.py), each
    # with a learning rate of its own: 2e-2 suits rms_scaled_adamw, whose steps are relative to the parameters; adamw
    # needs about 2e-3.
    config.optimizer.name = "rms_scaled_adamw"
    # After a linear warm-up from 0: "cosine", "linear", "wsd", "inverse_sqrt", "constant". "rsqrt" (T5X's rsqrt_decay)
    # is inverse_sqrt with a constant rate in place of the warm-up. See experiment/schedules.py.
    config.optimizer.schedule = "cosine"
    config.optimizer.learning_rate = 2e-2  # at the end of the warm-up
    config.optimizer.warmup_steps = 50  # updates of the warm-up, or of rsqrt's constant rate; 0: none
    config.optimizer.final_learning_rate_fraction = 0.1  # cosine, linear, wsd: the last rate / learning_rate
    config.optimizer.decay_fraction = 0.2  # wsd: the last part of the steps of a cycle, in which the rate falls
    config.optimizer.b1 = 0.9  # decay rate of the first moment; not read by adafactor
    config.optimizer.b2 = 0.98  # decay rate of the second moment; lion: of its momentum; not read by adafactor
    config.optimizer.eps = 1e-8  # added to Adam's denominator; not read by adafactor and lion
    config.optimizer.weight_decay = 0.0  # multiplied by the learning rate; 0: off
    config.optimizer.no_decay = ("norm", "bias", "embedd")  # regular expressions of parameter paths without decay
    config.optimizer.clip_norm = 1.0  # largest global norm of the gradients; 0: no clipping

    # Workdir of another run, whose newest checkpoint initializes the Transformer; or a Hugging Face folder. The model's
    # shape and the vocabulary are that folder's, but for fields of the command line (docs/chains.md).
    config.train.init_from = ""
    # The length of a run: updates, or passes over the training text. One of the two is 0. See run/corpus.py.
    config.train.steps = 600  # updates
    config.train.epochs = 0.0  # passes, such as 3.0 or 0.5; resolved to updates when the corpus is open
    config.train.batch_size = 16  # rows of a batch, over all devices and processes
    # Microbatches: parts of a batch, computed one after another to save memory. 0: resolved as model.remat="auto".
    config.train.grad_accum_steps = 1
    # Decay of the exponential moving average of the parameters, in [0, 1), such as 0.999; 0: off. If on, evaluations,
    # samples, train.generate and runs that start from this one read the averaged parameters (run/step.py).
    config.train.ema_decay = 0.0
    config.train.log_every = 20  # steps between reports of training metrics
    config.train.eval_every = 200  # steps between evaluations; with train.init_from there is one before the first step
    config.train.eval_windows = 512  # most held-out windows in an evaluation, at least one of each denoiser; 0: all
    config.train.checkpoint_every = 200  # steps between checkpoints
    config.train.keep_checkpoints = 2  # the newest; the one with the lowest held-out loss is kept too
    # Tools that show the metrics of metrics.jsonl: "tensorboard", "wandb" (Weights & Biases), "trackio"; () for none.
    config.train.trackers = ("tensorboard",)
    config.train.tracker_project = "cloze"  # wandb, trackio: the project; the run's name is its folder's with an id

    config.mesh = ConfigDict()
    config.mesh.backend = "jit"  # or "pmap": data parallelism only, through jax.pmap
    # The number of devices along each axis of the mesh. One axis may be -1: all remaining devices.
    config.mesh.data = -1  # devices with different rows, each with a copy of the training state
    config.mesh.fsdp = 1  # devices with different rows, each with a shard of the training state
    config.mesh.tensor = 1  # devices with the same rows, each with a shard of the training state
    return config


# Fields that most runs leave off. `get_config` has them too.
OPTIONAL = ConfigDict(
    dict(data=dict(filters=dict()), model=dict(), distillation=dict(), optimizer=dict(), train=dict())
)

# How the rates of several corpora follow from their weights: "weight"; or "num_examples" (seqio's
# rate_num_examples): weight * min(n, rates_maximum)^(1 / rates_temperature) for n training documents.
OPTIONAL.data.rates = "weight"
OPTIONAL.data.rates_maximum = 0  # "num_examples": T5's K, the artificial limit of documents; 0: no limit
OPTIONAL.data.rates_temperature = 1.0  # "num_examples": T; 1: in proportion to n, large: nearly equal rates

# Documents that the token store leaves out, as in Gopher and C4 (data/sources/filters.py has the papers' values).
# 0: off. A document with a prompt is prompt, space and text. The corpus' own held-out text (heldout_path) is never
# filtered.

OPTIONAL.data.filters.min_characters = 0  # least number of characters
OPTIONAL.data.filters.max_characters = 0  # greatest number of characters
OPTIONAL.data.filters.min_mean_word_length = 0.0  # least mean number of characters of words; white space ends a word
OPTIONAL.data.filters.max_mean_word_length = 0.0  # greatest mean number of characters of words
OPTIONAL.data.filters.max_symbol_fraction = 0.0  # greatest number of "#", and of ellipses, for each word
OPTIONAL.data.filters.min_punctuated_line_fraction = 0.0  # least share of lines that end in .!?"
OPTIONAL.data.filters.max_duplicate_line_fraction = 0.0  # greatest share of lines that repeat an earlier one
OPTIONAL.data.filters.max_duplicate_ngram_fraction = 0.0  # greatest share of characters in repeated 5-grams of words
OPTIONAL.data.filters.min_tokens = 0  # least number of tokens, without EOS
OPTIONAL.data.filters.max_tokens = 0  # greatest number of tokens, without EOS
# Copies of an earlier document that the store excludes: "none"; "exact", those with the same prompt, text and
# label; "near", near-identical ones too, by prompt and text together.
OPTIONAL.data.filters.remove_duplicates = "none"
OPTIONAL.data.filters.jaccard = 0.8  # the least similarity of near-identical texts, as sets of 5-grams of words

# Training documents that are identical or near-identical to held-out ones: "keep", or "drop" to exclude them. They are
# counted at the start in both cases, and the held-out documents are the same. See data/windows/leak_guard.py.
OPTIONAL.data.near_duplicates = "keep"
# Decoder-only: training steps in which attention to later tokens opens, where rows are read in both directions. Each of
# these edges is open with probability step / this number (DiffuLLaMA), so a start from a causal model is gradual.
# 0: all are open from the first step, as they always are in evaluations.
OPTIONAL.data.attention_annealing_steps = 0

OPTIONAL.model.embedding_size = 0  # width of the embedding tables, projected to d_model; 0: d_model, not projected
OPTIONAL.model.scale_logits = False  # T5 v1.0, tied embeddings only: divide the logits by the root of the table's width
OPTIONAL.model.scale_embeddings = False  # multiply the embeddings of tokens by the root of the table's width (Gemma)
# BERT: a norm right after the embeddings; one for each stack of an encoder-decoder (BART).
OPTIONAL.model.embedding_norm = False
OPTIONAL.model.num_decoder_layers = 0  # encoder-decoder: layers of the decoder alone; 0: num_layers
# Encoder-decoder: whether one token table serves both stacks. False: the encoder has its own (T5Gemma).
OPTIONAL.model.share_embeddings = True
# Whether the encoder has the decoder's layers, but for cross-attention: T5's "encoder-decoder, shared".
OPTIONAL.model.share_stacks = False
# Encoder-decoder: whether the decoder's self-attention also reads the encoder's states, with the same parameters and in
# one softmax, in place of cross-attention (T5Gemma 2).
OPTIONAL.model.merged_attention = False
# Encoder-decoder, positions="rope": whether the decoder's positions are counted on from the encoder's, whose keys are
# then rotary too (RedLLM).
OPTIONAL.model.continuous_positions = False
# Sentence types (BERT's A and B). nsp and sop always have 2; other objectives need 2 to start from their runs.
OPTIONAL.model.num_token_types = 0
# positions="learned" or "rope", decoder-only: whether each position also has the position of the token that it
# predicts, for texts in another order (configs/sigma_gpt.py). There is then one more learned position.
OPTIONAL.model.target_positions = False
OPTIONAL.model.global_every = 1  # every n-th layer attends to the whole text, the others locally
# global_every above 1: whether the first of n layers is that one (ModernBERT). False: the last of n (Gemma 2 and 3).
OPTIONAL.model.first_layer_global = True
# global_every above 1: positions to each side that a local layer attends to, its own not counted: Gemma's
# sliding_window - 1, half of ModernBERT's local_attention.
OPTIONAL.model.local_distance = 64
OPTIONAL.model.local_rope_theta = 10000.0  # global_every above 1, positions="rope": rope_theta of the local layers
OPTIONAL.model.partial_rotary_factor = 1.0  # positions="rope": the part of a head's features that rotate (Pythia: 0.25)
# positions="rope": waves of rope_theta that are longer than rope_original_length become longer by this factor, as in
# Llama 3.1, whose factor is 8.0 (32.0 in Llama 3.2); 1: off.
OPTIONAL.model.rope_scaling_factor = 1.0
OPTIONAL.model.rope_original_length = 8192  # rope_scaling_factor above 1: tokens of a row before the extension
# Pre-norm: whether the first layer has a norm before its attention. False after a norm of embeddings (ModernBERT).
OPTIONAL.model.first_attention_norm = True
OPTIONAL.model.sandwich_norm = False  # pre-norm: a second norm, of each block's output before it is added (Gemma 2)
OPTIONAL.model.qk_norm = False  # a norm of each head's queries and keys, before their rotation (Qwen 3)
# Norms of RMS without parameters, of each head's queries, keys and values before their rotation ("qkv": DecLLM), and of
# what each head reads, before the output projection ("qkvo": RedLLM).
OPTIONAL.model.head_norms = "none"
# Whether the attention probabilities have dropout_rate too. False (MosaicBERT): the fused kernels of GPUs and TPUs can
# compute the attention.
OPTIONAL.model.attention_dropout = True
OPTIONAL.model.parallel_residual = False  # attention and feed-forward block read the same state (GPT-NeoX, Pythia)
OPTIONAL.model.qkv_bias = False  # biases of queries, keys and values alone, without model.use_bias (Qwen 2)
# Scores become c * tanh(score / c) before the relative position bias and the softmax, as in Gemma 2, whose c is 50.0;
# 0: off. See models/kernels.py for the kernels that compute it.
OPTIONAL.model.attention_softcap = 0.0
OPTIONAL.model.logits_softcap = 0.0  # the same for the logits, whose c is 30.0 in Gemma 2; 0: off
OPTIONAL.model.logits_bias = False  # prediction_head="bert": a bias of the logits without model.use_bias (ModernBERT)
# "complete_p": with the optimizer "adamw", the learning rate of a model of base_d_model and base_num_layers suits every
# width and depth, if head_dim is that of the base, and num_heads and d_ff grow with d_model (models/complete_p.py).
OPTIONAL.model.parameterization = "standard"
OPTIONAL.model.base_d_model = 128  # "complete_p": d_model of the base
OPTIONAL.model.base_num_layers = 2  # "complete_p": num_layers of the base, in each of its stacks
# Layers per iteration of the loop over layers. 0: on GPUs all, where remat is "none" and kernels are not sharded;
# otherwise 1.
OPTIONAL.model.scan_unroll = 0

# A teacher's predictions, next to the targets of the objective: docs/chains.md#from-a-teacher.

# Workdir of a run, of whose newest checkpoint the token model is the teacher; or a Hugging Face folder. Its
# architecture and vocabulary are this run's, its sizes may be others. "": no teacher.
OPTIONAL.distillation.teacher = ""
# w, in [0, 1]: the loss is (1 - w) * loss of the targets + w * distillation_loss. 0: the teacher is not loaded.
OPTIONAL.distillation.weight = 0.5
# With p of the teacher and q of the model: "forward", KL(p || q), is large where q misses a token of p; "reverse",
# KL(q || p), where q has a token that p lacks; "jensen_shannon" is (KL(p || m) + KL(q || m)) / 2, m = (p + q) / 2.
OPTIONAL.distillation.divergence = "forward"
OPTIONAL.distillation.temperature = 1.0  # divides the logits of both; the loss is multiplied by its square
# The teacher's likeliest tokens at a position that are compared one by one; all others are one outcome. 0: all.
OPTIONAL.distillation.top_k = 0

# The first and the last step of each cycle of warm-up and schedule, as in "0-600,600-1000"; "": one cycle of all steps,
# "0-train.steps". From the end of a cycle to the next one cosine, linear and wsd stay at their last rate. For runs that
# continue with another train.steps: docs/running.md.
OPTIONAL.optimizer.cycles = ""

# Vocabularies are compared by the texts of tokens. "equal": another vocabulary is refused. "by_token": the rows of
# tokens that both have are copied, and new tokens keep their initial values.
OPTIONAL.train.init_from_vocabulary = "equal"
# Where held-out text here is training text of init_from's run, held-out losses would be too low: "error", "allow".
OPTIONAL.train.init_from_overlap = "error"
OPTIONAL.train.max_nonfinite_updates = 5  # consecutive non-finite gradients after which the run stops
# A checkpoint is also saved when this many minutes have passed since the last one, such as 30.0; 0: off.
OPTIONAL.train.checkpoint_minutes = 0.0
OPTIONAL.train.profile_steps = 0  # steps to trace, from the second on, into the workdir's tensorboard folder

_SIZE_FIELDS = ("num_layers", "d_model", "num_heads", "num_kv_heads", "head_dim", "d_ff")
TINY_SIZES = {field: get_config().model[field] for field in _SIZE_FIELDS}


def split_preset(preset: str, sizes: dict[str, dict], variants: dict[str, Any]) -> tuple[str, str]:
    """Returns the size and the variant that a preset names: "base", "iid_15_d_d" or "base,iid_15_d_d".

    The size is "tiny" and the variant the first of `variants` where the preset names none. Raises ValueError for any
    other name, with the names that exist, and for two sizes or two variants.
    """
    given_sizes, given_variants = [], []
    for name in preset.split(","):
        if name in variants:
            given_variants.append(name)
        elif name in (*DIAL, *sizes):
            given_sizes.append(name)
        else:
            names = [", ".join(map(repr, group)) for group in ([*DIAL, *sizes], variants)]
            example = f"tiny,{next(iter(variants))}"
            raise ValueError(f"unknown preset {name!r}: use {names[0]} or {names[1]}, or one of each: {example!r}")
    for kind, names in {"sizes": given_sizes, "variants": given_variants}.items():
        if len(names) > 1:
            raise ValueError(f"preset {preset!r} names several {kind}, {', '.join(map(repr, names))}: choose one")
    return (given_sizes or ["tiny"])[0], (given_variants or list(variants))[0]


def use_size(config: ConfigDict, size: str, sizes: dict[str, dict]) -> None:
    """Sets config.model to one of the published `sizes`, or changes a tiny experiment to a size of configs/sizes.py.

    Raises ValueError for any other size, with the names that exist.
    """
    if size not in (*DIAL, *sizes):
        raise ValueError(f"unknown preset {size!r}: use {', '.join(map(repr, [*DIAL, *sizes]))}")
    if size in sizes:
        config.model.update(sizes[size])
    elif size not in ("tiny", "s"):
        use_dial(config, size)


def mixture(denoisers: dict[str, dict]) -> dict[str, Any]:
    """Returns the fields of config.objective for a mixture of `denoisers`, by name, weighted by example."""
    return dict(name="mixture", mix_by="example", schedule="constant", denoisers=denoisers)


def corpus(
    *,
    source: str,
    path: str = "",
    heldout_path: str = "",
    document_per: str = "file",
    text_key: str = "text",
    documents: str = "",
    weight: float = 1.0,
) -> dict[str, Any]:
    """Returns one corpus of config.data.sources. The first five fields are as those of config.data.

    documents: as data.documents, for this corpus alone; "": data.documents. weight: above 0, relative to the others.
    """
    own = dict(source=source, path=path, heldout_path=heldout_path, document_per=document_per, text_key=text_key)
    return dict(**own, documents=documents, weight=weight)


def use_corpora(config: ConfigDict, corpora: dict[str, dict]) -> None:
    """Sets config.data to several corpora, by name, in place of data.source."""
    config.data.source = ""
    config.data.sources = ConfigDict(corpora)


def denoiser(*, name: str, mode: str, weight: float, **fields: Any) -> dict[str, Any]:
    """Returns one row of a mixture's table: the objective `name` with its `fields`.

    mode: the mode token before the inputs, one of data.mode_tokens; "" for none. weight: relative to the other rows.
    With corpora=("a", "b") in `fields` the denoiser reads these corpora of data.sources alone; loss_weight=2.0 doubles
    the weight of its scored tokens in the loss.
    """
    return dict(name=name, mode=mode, weight=weight, **fields)
