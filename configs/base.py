"""Every field that all experiments share, with its default. Experiments change only what differs.

Fields are typed by their value here. A tuple is overridden from the command line as "('a', 'b')".
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    """The shared defaults: a `tiny` T5 v1.1 encoder-decoder on the standard library's source text."""
    config = ConfigDict()
    config.seed = 0
    config.precision = "float32"  # compute: "float32", "bfloat16", "float16"; parameters stay float32

    config.data = ConfigDict()
    config.data.source = "stdlib"  # or "stdlib_functions", "text", "jsonl", "tfds": see data/sources.py
    config.data.path = ""  # text, jsonl: files, folders or globs, comma-separated; tfds: "name/config:version"
    config.data.document_per = "file"  # text: "file", "line" or "paragraph" (blocks between blank lines)
    config.data.on_unreadable = "error"  # a file that is not UTF-8, a line that is no JSON: "error" or "skip"
    config.data.tokenizer = "byte"  # "byte", or the path of a SentencePiece .model file
    config.data.num_sentinels = 100
    config.data.mode_tokens = (
        "[R]",
        "[S]",
        "[X]",
    )  # UL2's released checkpoints call them [NLU], [S2S], [NLG]
    config.data.inputs_length = 128  # encoder positions; the whole row where there is one stack
    config.data.targets_length = 128  # decoder positions of an encoder-decoder
    config.data.documents = "join"  # "join", "pack", "split" or "whole": see contract/batch.py, WindowSpec
    config.data.on_unusable = "error"  # documents too long to stand whole, or of no class: "error" or "skip"
    config.data.examples_per_row = 1  # more than one packs that many into each row
    config.data.packing = (
        "equal"  # shares of a row; or "planned", so that rows are full: see objectives/rows/filling.py
    )
    config.data.bidirectional_inputs = True  # decoder-only: inputs see each other (prefix LM); False: causal
    config.data.heldout_fraction = 0.05  # of the documents
    config.data.cache_dir = "~/.cache/cloze"  # token stores
    config.data.reader_threads = 2
    config.data.prefetch_batches = 16

    config.model = ConfigDict()
    config.model.architecture = "encoder_decoder"  # or "decoder_only", "encoder_only"
    config.model.num_layers = 2  # of each stack
    config.model.d_model = 128
    config.model.num_heads = 4
    config.model.num_kv_heads = 4  # fewer than num_heads: grouped-query attention
    config.model.head_dim = 32
    config.model.d_ff = 256
    config.model.embedding_size = 0  # columns of the embedding tables, projected to d_model; 0: d_model
    config.model.mlp = "gated_gelu"  # "relu", "gelu", "silu", "gated_gelu", "gated_silu"
    config.model.positions = "relative"  # "relative" (T5 buckets), "rope", "learned", "none"
    config.model.relative_num_buckets = 32
    config.model.relative_max_distance = 128
    config.model.rope_theta = 10000.0
    config.model.norm = "rms"  # "rms" or "layer"
    config.model.norm_position = "pre"  # "pre" or "post"
    config.model.norm_epsilon = 1e-6
    config.model.use_bias = False
    config.model.tie_embeddings = False
    config.model.scale_logits = False  # T5 v1.0: with tied embeddings, logits / sqrt(d_model)
    config.model.scale_attention = False  # True: divide by sqrt(head_dim); T5 folds it into the query's init
    config.model.embedding_norm = False  # BERT: a norm right after the embeddings
    config.model.prediction_head = "linear"  # "linear", or "bert": dense, gelu, norm before the output table
    config.model.num_token_types = 0  # sentence types; objectives on pairs have 2 anyway; 2 to start from their run
    config.model.initializer = "t5"  # "t5", or "normal": N(0, initializer_range) for every matrix
    config.model.initializer_range = 0.02
    config.model.dropout_rate = 0.0
    config.model.attention = "auto"  # or "xla", "cudnn" (NVIDIA GPUs), "splash" (TPUs): see models/kernels.py
    config.model.remat = "none"  # or "dots", "full": what the backward pass makes again, see models/remat.py
    config.model.scan_unroll = 1  # layers in a turn of the loop over them; all: faster on CPU, slower to compile

    config.loss = ConfigDict()
    config.loss.z_loss = 1e-4
    config.loss.label_smoothing = 0.0
    config.loss.chunk_size = 0  # positions of each row whose logits are in memory at a time; 0: all of them

    config.optimizer = ConfigDict()
    config.optimizer.name = "rms_scaled_adamw"  # or "adamw", "adafactor", "lion", "muon"
    config.optimizer.schedule = "cosine"  # or "linear", "wsd", "inverse_sqrt", "constant"; after linear warm-up
    config.optimizer.learning_rate = 2e-2  # at the end of warm-up
    config.optimizer.warmup_steps = 50
    config.optimizer.final_learning_rate_fraction = 0.1  # cosine, linear, wsd: where it ends, of learning_rate
    config.optimizer.decay_fraction = 0.2  # wsd: the last part of train.steps, where the rate falls
    config.optimizer.b1 = 0.9
    config.optimizer.b2 = 0.98
    config.optimizer.eps = 1e-8
    config.optimizer.weight_decay = 0.0
    config.optimizer.no_decay = (
        "norm",
        "bias",
        "embedd",
    )  # regular expressions: parameters whose path matches
    config.optimizer.clip_norm = 1.0  # global norm; 0 is off

    config.train = ConfigDict()
    config.train.init_from = ""  # workdir of another run: begin with its Transformer, of the newest checkpoint
    config.train.steps = 600
    config.train.batch_size = 16  # rows, over all devices and processes
    config.train.grad_accum_steps = 1
    config.train.log_every = 20
    config.train.eval_every = 200
    config.train.eval_batches = 16
    config.train.checkpoint_every = 200
    config.train.keep_checkpoints = 2  # the newest ones, besides the best
    config.train.max_nonfinite_updates = 5  # in a row, before the run stops
    config.train.profile_steps = 0  # this many, from the second on, are traced into the workdir's tensorboard folder

    config.mesh = ConfigDict()
    config.mesh.backend = "jit"  # or "pmap": pure data parallelism through jax.pmap
    config.mesh.data = -1  # -1, on one axis: all devices that the others leave
    config.mesh.fsdp = 1
    config.mesh.tensor = 1
    return config


TINY_SIZES = {"num_layers": 2, "d_model": 128, "num_heads": 4, "num_kv_heads": 4, "head_dim": 32, "d_ff": 256}


def is_paper_scale(config: ConfigDict, preset: str, sizes: dict[str, dict]) -> bool:
    """False for "tiny". For one of `sizes`, gives config.model that size and returns True.

    Raises ValueError for any other preset, naming those there are.
    """
    if preset == "tiny":
        return False
    if preset not in sizes:
        raise ValueError(f"unknown preset {preset!r}: use {', '.join(map(repr, ['tiny', *sizes]))}")
    config.model.update(sizes[preset])
    return True


def split_preset(preset: str, sizes: dict[str, dict], variants: dict[str, dict]) -> tuple[str, str]:
    """The size and the variant in a preset such as "base,iid_15_d_d": either, or both with a comma between them.

    "tiny" and the first of `variants` where it names none. Raises ValueError for anything else, naming those there are.
    """
    size, variant = "tiny", next(iter(variants))
    for name in preset.split(","):
        if name in variants:
            variant = name
        elif name in ("tiny", *sizes):
            size = name
        else:
            names = [", ".join(map(repr, group)) for group in (["tiny", *sizes], variants)]
            raise ValueError(f"unknown preset {name!r}: use {names[0]} or {names[1]}, or one of each: 'tiny,{variant}'")
    return size, variant


def use_t5_recipe(config: ConfigDict) -> None:
    """T5's pre-training recipe: rows of 512, Adafactor, inverse square root after 10,000 steps at 0.01.

    The backward pass makes attention's probabilities again: with a relative bias they are arrays of [heads, 512, 512]
    for each row and layer, most of what a step would keep, and a small part of what it computes.
    """
    config.model.remat = "dots"
    config.data.inputs_length = 512
    config.data.targets_length = 512
    config.optimizer.name = "adafactor"
    config.optimizer.schedule = "inverse_sqrt"
    config.optimizer.learning_rate = 0.01
    config.optimizer.warmup_steps = 10_000
    watch_long_run(config)


def watch_long_run(config: ConfigDict) -> None:
    """Logs, evaluates and saves at the pace of days rather than minutes; computes in bfloat16."""
    config.precision = "bfloat16"
    config.train.log_every = 100
    config.train.eval_every = 5000
    config.train.eval_batches = 64
    config.train.checkpoint_every = 5000
