r"""What the studies of English share: the corpus, the model, and the measures of four tasks. It is no study itself.

The files are made once (docs/data.md):

    python -m data.english --nltk_data=nltk_data --blimp=blimp --out=english
    python -m data.train_tokenizer --source=jsonl --path=english/english.jsonl --vocab_size=4000 \
        --out=english/english.model
"""

from collections.abc import Mapping, Sequence
from typing import Any

from configs.studies.base import fine_tuning, probe, variant
from configs.studies.common import SHORT_RUNS, layers

FOLDER = "english"
TASKS = {  # classes of each task, as data.english writes them
    "subj": ("objective", "subjective"),
    "mr": ("negative", "positive"),
    "trec": ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM"),
    "proscons": ("con", "pro"),
}
_ENCODER = {"model.architecture": "encoder_only"}
_DECODER = {"model.architecture": "decoder_only"}
# Variant -> its config, its architecture and its other fields.
_OBJECTIVES: dict[str, tuple[str, Mapping[str, Any]]] = {
    "clm": ("clm.py", _DECODER),
    "prefix_lm": ("prefix_lm.py", _DECODER),
    "span_corruption": ("span_corruption.py", _DECODER),
    "ul2": ("ul2.py", _DECODER),
    "bart": ("bart.py", _DECODER | {"objective.sentence_ends": "stops"}),
    "hybrid": ("hybrid.py", _DECODER),
    "mlm_15": ("mlm.py", _ENCODER),
    "mlm_30": ("mlm.py", _ENCODER | {"objective.mask_rate": 0.3}),
    "mlm_50": ("mlm.py", _ENCODER | {"objective.mask_rate": 0.5}),
    "electra": ("electra.py", _ENCODER | {"objective.generator_size": 0.5}),  # a quarter of two heads is none
    "masked_diffusion": ("masked_diffusion.py", _ENCODER),
}
OBJECTIVES = tuple(_OBJECTIVES)
CONTINUES = ("clm", "prefix_lm", "span_corruption", "ul2", "bart", "hybrid")

SIZES = {  # of Llama blocks, with the table of 4,000 tokens
    "xs": layers(2, 64, 2),  # 0.35M parameters
    "s": layers(4, 128, 4),  # 1.2M parameters
}

# Rows of 128 tokens hold the texts of the tasks, and the windows of the probes.
MODEL = SHORT_RUNS | {
    "data.source": "jsonl",
    "data.path": f"{FOLDER}/english.jsonl",
    "data.tokenizer": f"{FOLDER}/english.model",
    "data.documents": "join",
    "data.inputs_length": 128,
    "data.targets_length": 128,
    "model.tie_embeddings": True,
    "model.prediction_head": "bert",  # ELECTRA's generator needs it where tables are tied
    "train.batch_size": 16,
}


def objective(name: str, size: str = "xs") -> dict[str, Any]:
    """Returns the variant of one of OBJECTIVES at one of SIZES. Raises KeyError for another name."""
    config, fields = _OBJECTIVES[name]
    return variant({**fields, **SIZES[size]}, config=f"configs/{config}")


def linear(tasks: Sequence[str] = (*TASKS,), counts: Sequence[str] = ("100", "500")) -> dict[str, dict[str, Any]]:
    """Returns the measures of what a linear classifier reads: an accuracy for each task and number of labels."""
    return {
        f"{task}_{count}": probe(
            "linear",
            f"labels.{count}.accuracy",
            better="higher",
            path=f"{FOLDER}/{task}.train.jsonl",
            test=f"{FOLDER}/{task}.test.jsonl",
            labels=tuple(counts),
        )
        for task in tasks
        for count in counts
    }


def blimp() -> dict[str, dict[str, Any]]:
    """Returns the measure of BLiMP: the share of pairs whose grammatical sentence is likelier."""
    return {"blimp": probe("minimal_pairs", "accuracy", better="higher", path=f"{FOLDER}/blimp.jsonl")}


def fine_tuned(task: str, part: str, steps: int) -> dict[str, Any]:
    """Returns the measure of accuracy on the test part after fine-tuning of mean-pooled states.

    part: "train", or "500" for 500 labelled texts of it.
    """
    return fine_tuning(
        overrides={
            "data.source": "jsonl",
            "data.path": f"{FOLDER}/{task}.{part}.jsonl",
            "data.heldout_path": f"{FOLDER}/{task}.test.jsonl",
            "data.inputs_length": 128,
            "data.on_unusable": "error",
            "objective.classes": TASKS[task],
            "objective.pooling": "mean",
            "train.steps": steps,
            "train.eval_every": steps,
            "train.eval_windows": 0,
        }
    )
