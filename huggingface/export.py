"""A run as a Hugging Face folder: python -m train.export --workdir=RUN --out=DIR [--step=N] [--dtype=bfloat16]

Writes config.json, safetensors, the tokenizer, generation_config.json and a model card, README.md. The parameters are
the averaged ones if the run averages (train.ema_decay). ELECTRA has two folders, generator and discriminator;
--discriminator_only writes the latter alone. --causal writes the decoder of configs/hybrid.py, which reads texts from
the left or in both directions, as one that reads from the left. See docs/huggingface.md.
"""

import dataclasses
import itertools
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
from absl import flags

from command.flags import define_code, parse_flags, run_command
from contract.errors import ConfigError
from data.tokenizers.export import write_huggingface_tokenizer
from data.tokenizers.tokenizer import HuggingFaceTokenizer
from experiment.experiment import Experiment
from files.atomic import atomic_folder, check_new_folder, write_json
from generate.prompts import make_prompt
from huggingface.families import FAMILIES, Folder, folders_of
from huggingface.folder import WeightsDtype, write_weights
from huggingface.importing import KEPT_OPTIONS
from models.parameters import Params
from objectives import Denoiser
from objectives.prompting import Continue, FillMasks
from run.corpus import describe_corpus
from run.restore import load_experiment, load_params, reading_mesh
from workdir.workdir import Workdir

_FLAGS = flags.FlagValues()
define_code(_FLAGS)
_WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the run.", _FLAGS, required=True)
_OUT = flags.DEFINE_string("out", None, "Folder to write.", _FLAGS, required=True)
_STEP = flags.DEFINE_integer("step", None, "Checkpoint to export. Default: the newest.", flag_values=_FLAGS)
_DTYPE = flags.DEFINE_enum(
    "dtype", "float32", ["float32", "bfloat16", "float16"], "Type of the tensors.", flag_values=_FLAGS
)
_LANGUAGE_MODEL_ONLY = flags.DEFINE_bool(
    "language_model_only", False, "Leave out what the run trains besides its language model.", _FLAGS
)
_DISCRIMINATOR_ONLY = flags.DEFINE_bool(
    "discriminator_only",
    False,
    "Leave out ELECTRA's generator, which transformers has with the exact GELU only.",
    _FLAGS,
)
_CAUSAL = flags.DEFINE_bool(
    "causal", False, "Write a decoder that also reads in both directions as a causal one, for the rows of CLM.", _FLAGS
)

AroundText = tuple[tuple[int, ...], tuple[int, ...]]  # ids before and after a text
_ONE_SIDED = ("left_to_right", "right_to_left")  # patterns of UniLM
# By the end of the name of a class of transformers: the class that loads it.
_AUTO_CLASSES = {
    "ForConditionalGeneration": "AutoModelForSeq2SeqLM",
    "ForCausalLM": "AutoModelForCausalLM",
    "LMHeadModel": "AutoModelForCausalLM",
    "ForMaskedLM": "AutoModelForMaskedLM",
    "ForPreTraining": "AutoModelForPreTraining",
    "ForSequenceClassification": "AutoModelForSequenceClassification",
}


def main() -> None:
    """Reads the command line and writes the folder."""
    parse_flags(_FLAGS, __doc__)
    workdir = Workdir(_WORKDIR.value)
    experiment = load_experiment(workdir)
    parts = _LANGUAGE_MODEL_ONLY.value, _DISCRIMINATOR_ONLY.value, _CAUSAL.value
    exporter = Exporter(workdir, experiment, _DTYPE.value, *parts)
    exporter.folders(experiment.params_shapes)  # raises before anything slow runs
    check_new_folder(_OUT.value, "--out")
    params, step = load_params(experiment, workdir, _STEP.value, mesh=reading_mesh(experiment))
    with atomic_folder(_OUT.value, "--out") as out:
        exporter.write(out, jax.device_get(params), step)
    print(f"exported step {step} to {_OUT.value}")


@dataclasses.dataclass(frozen=True)
class Exporter:
    """Writes the checkpoints of one run.

    Attributes:
      workdir: the run's.
      experiment: from run.restore.load_experiment.
      dtype: of the tensors.
      language_model_only: leave out the parameters of the learner that are not the language model's.
      discriminator_only: leave out ELECTRA's generator.
      causal: write a decoder of which some rows are read in both directions as one that reads all from the left.
    """

    workdir: Workdir
    experiment: Experiment
    dtype: WeightsDtype
    language_model_only: bool = False
    discriminator_only: bool = False
    causal: bool = False

    def folders(self, params: Params) -> dict[str, Folder]:
        """Returns what each folder is written from, by the name of the part; "" for a run with one model.

        params: the run's, or their shapes. Raises ConfigError if no class of `transformers` can hold the run's model,
        or if the class has no place for some of the parameters.
        """
        learner = self.experiment.learner
        if self.causal:
            _check_causal(self.experiment)
            learner = dataclasses.replace(learner, model=dataclasses.replace(learner.model, has_prefix=False))
        else:
            for denoiser in self.experiment.denoisers:
                _check_rows(denoiser, self.experiment)
        folders = folders_of(learner, params)
        carried = {module for folder in folders.values() for module in folder.params}
        if "generator" in folders:  # whose parameters are in a folder of their own, or not exported
            carried.add("generator")
        extras = [module for module in params if module not in carried]
        if extras and not self.language_model_only:
            raise ConfigError(
                f"objective.name={self.experiment.objective_name!r} trains {', '.join(extras)} in addition to the "
                "Transformer, and no class of transformers that holds this model has a place for that: "
                "--language_model_only leaves it out"
            )
        if self.language_model_only and not extras:
            raise ConfigError("--language_model_only leaves nothing out of this run: remove it")
        if self.discriminator_only:
            if "discriminator" not in folders:
                raise ConfigError("--discriminator_only is for runs of ELECTRA: remove it")
            del folders["generator"]
        for part, folder in folders.items():
            family = FAMILIES.get(self._origin(part).get("architecture"), folder.family)
            try:
                family.check_model(folder.model)
            except ConfigError as error:
                if part != "generator":
                    raise
                remedy = "in the generator's head: --discriminator_only leaves the generator out"
                raise ConfigError(f"{error}, {remedy}") from error
            folders[part] = folder._replace(family=family)
        return folders

    def write(self, out: Path, params: Params, step: int) -> None:
        """Writes a checkpoint to the empty folder `out`, or to folders in it where a run has two models.

        params: of the checkpoint of `step`, on the host.
        """
        for part, contents in self.folders(params).items():
            (out / part).mkdir(exist_ok=True)
            self._write_model(out / part, part, contents, step)
        # data.cache_dir is a path of this machine.
        data = {name: value for name, value in self.experiment.config["data"].items() if name != "cache_dir"}
        write_json(out / "cloze.json", {"config": self.experiment.config | {"data": data}, "step": step})

    def _write_model(self, folder: Path, part: str, contents: Folder, step: int) -> None:
        """Writes one model and its tokenizer."""
        family, model, params = contents
        experiment, vocab, origin = self.experiment, self.experiment.vocab, self._origin(part)
        pads = [
            options.get("pad_token_id") for options in (origin.get("options", {}), family.defaults if origin else {})
        ]
        pad = next((pad for pad in pads if pad is not None), vocab.pad)  # which is written: RoBERTa's positions need it
        config = family.huggingface_config(model, dataclasses.replace(vocab, pad=pad))
        if origin:  # the ids with which texts begin and end are those of the imported folder
            config = {name: value for name, value in config.items() if name not in KEPT_OPTIONS} | origin["options"]
        write_weights(folder, family.to_tensors(params, model, config), self.dtype)
        write_json(folder / "config.json", family.nested(config) | {"dtype": self.dtype})
        auto_class = next(name for end, name in _AUTO_CLASSES.items() if family.architecture.endswith(end))
        if auto_class in ("AutoModelForCausalLM", "AutoModelForSeq2SeqLM"):
            never = [vocab.pad] if vocab.pad != vocab.eos else []  # as generate.sampling.allowed_tokens
            never += range(vocab.size, config["vocab_size"])
            kept = {name: config[name] for name in KEPT_OPTIONS if name in config}
            write_json(folder / "generation_config.json", kept | ({"suppress_tokens": never} if never else {}))
        # The tokenizer.json of an imported model is unchanged.
        keeps_tokenizer = bool(origin) and isinstance(experiment.tokenizer, HuggingFaceTokenizer)
        begin, end = (None, None) if keeps_tokenizer else around_text(experiment)
        write_huggingface_tokenizer(
            experiment.tokenizer,
            folder,
            begin=begin,
            end=end,
            bos=None if model.has_encoder else vocab.decoder_start,
            token_types=model.num_token_types > 1,
            max_length=model.max_length if model.positions == "learned" else None,
        )
        if auto_class == "AutoModelForCausalLM" and model.positions == "rope":
            # `generate` continues the ends of rows. With learned positions a mere forward pass would then be wrong.
            path = folder / "tokenizer_config.json"
            write_json(path, json.loads(path.read_bytes()) | {"padding_side": "left"})
        (folder / "README.md").write_text(self._model_card(part, contents, auto_class, step), encoding="utf-8")

    def _model_card(self, part: str, contents: Folder, auto_class: str, step: int) -> str:
        """Returns the text of README.md: the facts of the checkpoint, and how to load it."""
        experiment = self.experiment
        rows = {
            "objective": ", ".join(dict.fromkeys([experiment.objective_name, *experiment.denoiser_names])),
            "parameters": f"{sum(leaf.size for leaf in jax.tree.leaves(contents.params)):,}, {self.dtype}",
            "steps": "unknown: imported, or trained in a loop of one's own",
        }
        if not self.workdir.is_imported:
            rows["steps"] = f"{step:,} of {experiment.train.batch_size} rows"
            rows["corpus"] = describe_corpus(experiment.data).replace("|", "\\|")
            rows["tokens seen"] = f"{sum(self.workdir.counters(step)['raw_tokens']):,} of training text"
            lines = self.workdir.metrics("eval") if self.workdir.has_metrics else []
            at_step = [line for line in lines if line["step"] == step and line.get("loss") is not None]
            rows["held-out loss"] = _loss_text(at_step[-1]) if at_step else "not evaluated at this step"
        if self.causal:
            rows["attention"] = "causal; the run read other rows in both directions"
        if self.language_model_only or self.discriminator_only:
            rows["not in this folder"] = "what the run trained in addition to this model"
        title = f"# {experiment.objective_name} ({experiment.model.architecture.replace('_', '-')})"
        return "\n".join(
            [
                *("---", "library_name: transformers", "tags:", "- cloze", f"- {experiment.objective_name}", "---"),
                *("", title + (f", {part}" if part else ""), "", "| | |", "|---|---|"),
                *(f"| {name} | {value} |" for name, value in rows.items()),
                *("", "```python", f"from transformers import {auto_class}, AutoTokenizer", ""),
                'tokenizer = AutoTokenizer.from_pretrained(".")  # this folder, or its name on the Hub',
                *(f'model = {auto_class}.from_pretrained(".")', "```", ""),
            ]
        )

    def _origin(self, part: str) -> dict[str, Any]:
        """Returns what FolderModel.origin says of an imported model; {} for a run."""
        return self.workdir.imported().get("folders", {}).get(part, {})


def _loss_text(line: dict[str, Any]) -> str:
    """Returns the held-out loss of a line of metrics.jsonl, and its standard error if the line has one."""
    stderr = line.get("loss_stderr")
    return f"{line['loss']:.4g}" + (f" ± {stderr:.2g}" if stderr is not None else "") + " nats per scored token"


def _check_causal(experiment: Experiment) -> None:
    """Raises ConfigError for a run of which no class of transformers gets more by --causal."""
    if experiment.model.has_encoder or not experiment.model.has_prefix:
        raise ConfigError("--causal is for a decoder that reads rows in both directions: remove it")
    if not _has_causal_rows(experiment):
        names = ", ".join(denoiser.name for denoiser in experiment.denoisers)
        raise ConfigError(f"--causal needs rows that were read from the left in training, as CLM's, and has {names}")


def _has_causal_rows(experiment: Experiment) -> bool:
    return any(isinstance(denoiser.objective.prompting, Continue) for denoiser in experiment.denoisers)


def _check_rows(denoiser: Denoiser, experiment: Experiment) -> None:
    """Raises ConfigError for rows of a denoiser as no class of transformers reads them."""
    prompting, why = denoiser.objective.prompting, ""
    if denoiser.objective.has_positions:
        why = "has targets at positions of their own"
    elif not isinstance(prompting, FillMasks) or prompting.causal:
        return
    elif experiment.model.has_decoder:
        why = "has rows that a decoder reads in both directions"
    elif prompting.shifted:
        why = "predicts a token where the token before it is read"
    elif prompting.block_length:
        why = "has rows with a second copy of their text"
    elif all(getattr(each.objective, "attention", None) in _ONE_SIDED for each in experiment.denoisers):
        why = "has tokens that attend to one side alone"
    if why:
        is_causal = experiment.model.has_prefix and not experiment.model.has_encoder and _has_causal_rows(experiment)
        remedy = "--causal exports it for causal rows" if is_causal else "it has no export"
        raise ConfigError(f"the objective {denoiser.name} {why}, which no class of transformers does: {remedy}")


def around_text(experiment: Experiment) -> AroundText:
    """Returns the ids that rows of training have before and after a text, which the exported tokenizer adds.

    The end is what the prompts of all denoisers end with: in a mixture of span corruption, whose inputs end with EOS,
    and CLM on a decoder, it is empty.
    """
    vocab, model = experiment.vocab, experiment.model
    if not model.has_decoder:
        promptings = [denoiser.objective.prompting for denoiser in experiment.denoisers]
        has_ends = not all(isinstance(prompting, FillMasks) and not prompting.has_ends for prompting in promptings)
        return ((vocab.cls,), (vocab.sep,)) if has_ends else ((), ())
    ends = [_end_of_prompt(denoiser, experiment) for denoiser in experiment.denoisers if denoiser.objective.prompting]
    from_the_end = zip(*(reversed(end) for end in ends), strict=False)
    common = itertools.takewhile(lambda ids: len(set(ids)) == 1, from_the_end)
    return () if model.has_encoder else (vocab.decoder_start,), tuple(ids[0] for ids in common)[::-1]


def _end_of_prompt(denoiser: Denoiser, experiment: Experiment) -> tuple[int, ...]:
    """Returns the special tokens after the text of a prompt without sentinels."""
    text = np.full(1, experiment.vocab.content_start, np.int32)
    prompt = make_prompt(denoiser, text, experiment.vocab)
    ids = prompt.inputs.tolist()
    if not experiment.model.has_encoder:
        ids += prompt.targets_start.tolist()
    ids = ids or [experiment.vocab.eos]  # an encoder without inputs, as rows of training have it (rows/layout.py)
    return tuple(ids[ids.index(text[0]) + 1 :] if text[0] in ids else ids)


if __name__ == "__main__":
    run_command(main)
