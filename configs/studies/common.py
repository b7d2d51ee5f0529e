"""What several studies have in common: short runs on the embedded corpus, shapes, and measures of any objective.

These measures mean the same for runs of different objectives: docs/comparing.md. A run's own held-out loss does not,
because each objective scores other tokens. Probabilities of continuations and hidden spans are among tokens of text
(`text_only`), so a model that is trained to write short spans is not measured by how soon it expects a span to end.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from configs import architectures, base
from configs.studies.base import fine_tuning, probe, published

# For runs of about a minute. The runner chooses how often such a run is evaluated.
SHORT_RUNS = {"train.eval_windows": 128}

# The fine-tuning of configs/classification.py, half as long.
_FINE_TUNING = {"train.steps": 150, "train.eval_every": 150}

# Counted from sentence_labels of all held-out batches of configs/classification.py (make_experiment(...).heldout(
# open_corpora(...).heldout_documents).batches) under Python 3.11: 201 of 512 windows are of "encodings". Another
# version of Python has other modules.
CLASSIFICATION_NOTE = (
    "Accuracy and macro F1 are of at most 512 windows of 20 held-out modules. Windows of one module are similar, so "
    "both are coarse: the interval over seeds says nothing about other modules. 39.3% of the windows have the "
    "commonest of the seven classes, which is the accuracy of predicting that class always."
)


def shape(fields: Mapping[str, Any], **others: Any) -> dict[str, Any]:
    """Returns overrides for a shape of configs/architectures.py in the tiny size, except for its architecture.

    others: fields of config.model that differ, such as num_layers=4.
    """
    fields = {**fields, **base.TINY_SIZES, **others}
    return {f"model.{field}": value for field, value in fields.items() if field != "architecture"}


T5_BLOCKS = shape(architectures.T5_V1_1["base"])
LLAMA_BLOCKS = shape(architectures.LLAMA["7b"])


def layers(num_layers: int, d_model: int, num_heads: int) -> dict[str, int]:
    """Returns overrides for a size: the feed-forward width is twice d_model."""
    return {
        "model.num_layers": num_layers,
        "model.d_model": d_model,
        "model.num_heads": num_heads,
        "model.num_kv_heads": num_heads,
        "model.head_dim": d_model // num_heads,
        "model.d_ff": 2 * d_model,
    }


def described(docstring: str, *notes: str) -> dict[str, str]:
    """Returns a study's question and notes: its docstring's first sentence; its last paragraph, followed by `notes`."""
    paragraphs = [" ".join(paragraph.split()) for paragraph in docstring.strip().split("\n\n")]
    return dict(question=paragraphs[0].partition("?")[0] + "?", notes=" ".join([paragraphs[-1], *notes]))


def classification() -> dict[str, dict[str, Any]]:
    """Returns the measures of classification after fine-tuning: accuracy and macro F1 of held-out texts."""
    return {metric: fine_tuning(metric, overrides=_FINE_TUNING) for metric in ("accuracy", "macro_f1")}


def continuation(only: Sequence[str] = ()) -> dict[str, dict[str, Any]]:
    """Returns the measure of bits per byte of the second half of held-out texts."""
    return {"continuation": probe("continuation", "bits_per_byte", only=only, text_only=True)}


def infilling(only: Sequence[str] = (), spans: Sequence[int] = (3, 8, 32)) -> dict[str, dict[str, Any]]:
    """Returns the measures of bits per byte of hidden spans of 3, 8 and 32 tokens; not for encoders."""
    return {
        f"infilling_{span}": probe("infilling", f"spans.{span}.bits_per_byte", only=only, text_only=True)
        for span in spans
    }


def exact_infilling(only: Sequence[str] = ()) -> dict[str, dict[str, Any]]:
    """Returns the measure of the share of hidden spans of 3 tokens that the model writes exactly; for encoders too."""
    return {"exact_infilling_3": probe("infilling", "spans.3.exact_match", better="higher", only=only, text_only=True)}


def published_scores(tables: str, scores: Mapping[str, tuple[float, float]]) -> list[dict[str, Any]]:
    """Returns T5's scores on GLUE and on SuperGLUE of each variant. tables: of Raffel et al. (2020)."""
    source = f"Raffel et al. (2020), {tables} (transcribed by a third party; sd of table 1)"
    glue, superglue = ({name: both[k] for name, both in scores.items()} for k in range(2))
    return [
        published(source, measure="accuracy", metric="GLUE", values=glue, sd=0.235),
        published(source, measure="accuracy", metric="SuperGLUE", values=superglue, sd=0.416),
    ]


def published_t5gemma(prefix_lm: str) -> list[dict[str, Any]]:
    """Returns T5Gemma's orders of UL2 and prefix LM, which differ between measures. prefix_lm: the variant's name."""
    source = "T5Gemma, project page: encoder-decoders that were adapted with distillation, unlike here"
    understands, generates = [("ul2", prefix_lm)], [(prefix_lm, "ul2")]
    return [
        published(source, measure="accuracy", metric="representations", better_than=understands),
        published(source, measure="continuation", metric="generation", better_than=generates, better="lower"),
    ]
