"""A model and what one does with it from Python."""

import dataclasses
import difflib
import functools
import io
import os
import shutil
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any, get_args

import jax
import numpy as np
from jax.sharding import Mesh
from rich.console import Console

from cluster.cluster import Cluster
from contract.batch import Batch
from contract.errors import ConfigError
from data.tokenizers.tokenizer import Tokenizer
from data.windows.batches import loader
from evaluation import likelihood
from evaluation.likelihood import Likelihood
from evaluation.scorer import LanguageModel
from evaluation.text_losses import TextLoss, text_losses
from experiment.experiment import Experiment
from experiment.outside import code_of
from generate.classify import Classified, classifier_rows, classifies, classify
from generate.texts import Filled, Generated, NamedText, Options, answer_texts, read_texts
from models.parameters import Params, array_difference, array_types
from objectives import Denoiser
from run.compiled_run import make_run
from run.corpus import describe_changed_corpus, open_corpora
from run.evaluation import evaluate
from run.restore import language_model, reading_mesh
from run.texts import Text, batch_of, takes_pairs, text_windows
from show.examples import Chunk
from show.page import Page, make_page_of_rows, open_page
from show.terminal import AS_WRITTEN, html_page, print_page
from workdir.metrics import Split
from workdir.workdir import Workdir


class Shown:
    """What `Model.show` returns. Its text is that of train.show, and a notebook displays its HTML."""

    def __init__(self, page: Page):
        self.page = page

    def __str__(self) -> str:
        console = Console(file=io.StringIO(), width=shutil.get_terminal_size().columns, **AS_WRITTEN)
        print_page(self.page, console)
        return console.file.getvalue()

    __repr__ = __str__

    def to_html(self) -> str:
        """Returns the page as a self-contained HTML file."""
        return html_page(self.page)

    def _repr_html_(self) -> str:
        # In a frame, so that the page's styles do not change the notebook's.
        style = "width:100%;height:640px;border:0"
        return f'<iframe srcdoc="{escape(self.to_html())}" style="{style}" loading="lazy"></iframe>'


class Model:
    """A model with its objective and tokenizer. Made by cloze.load, cloze.new and cloze.train, and immutable.

    Methods that take texts or prompts take one, and return its result, or a list or tuple, and return a list. Rows are
    padded to a few sizes, so that most calls use programs that are compiled already. Every result is that of the text
    alone.

    Attributes:
      experiment: the checked config and the objects that it describes.
      params: the learner's parameters, as nested dicts of jax.Array on the devices of `mesh`.
      mesh: over whose devices rows are split.
      step: of the checkpoint; 0 without one.
      workdir: the folder of the run; None without one.
    """

    def __init__(
        self, experiment: Experiment, params: Params, mesh: Mesh, *, source: str, step: int, workdir: str | None
    ):
        self.experiment = experiment
        self.params = params
        self.mesh = mesh
        self.step = step
        self.workdir = workdir
        self._source = source

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer: encode(text), decode(ids), vocab."""
        return self.experiment.tokenizer

    def __repr__(self) -> str:
        experiment = self.experiment
        model, data, vocab = experiment.model, experiment.data, experiment.vocab
        rows = f"{data.inputs_length} positions"
        if model.architecture == "encoder_decoder":
            rows = f"encoder {data.inputs_length}, decoder {data.targets_length} positions"
        of_decoder = f" and {model.num_decoder_layers}" if model.num_decoder_layers else ""
        denoisers = ", ".join(f"{one.name} {one.mode}".strip() for one in experiment.denoisers)
        lines = {
            "model": self._source,
            "objective": experiment.objective_name + (f": {denoisers}" if len(experiment.denoisers) > 1 else ""),
            "shape": f"{model.architecture}, {model.num_layers}{of_decoder} layers a stack, d_model {model.d_model}, "
            f"{model.num_heads} heads, d_ff {model.d_ff}, positions {model.positions}, {model.dtype}",
            "parameters": f"{experiment.num_params:,}",
            "rows": rows,
            "tokenizer": f"{data.tokenizer}, {vocab.size:,} ids",
            "devices": f"{self.mesh.size} x {self.mesh.devices.flat[0].device_kind}",
        }
        return "\n".join(f"{name:<10}  {value}" for name, value in lines.items())

    def _repr_html_(self) -> str:
        return f"<pre>{escape(repr(self))}</pre>"

    def show(
        self, texts: Text | Sequence[Text] | None = None, *, denoiser: str | None = None, seed: int = 0,
        num_examples: int | None = None,
    ) -> Shown:  # fmt: skip
        """Returns the page of train.show: what the objective makes of text, and what is scored and visible.

        Args:
          texts: up to a window long; None: examples of the run's corpus, with statistics.
          denoiser, seed: for `texts`, as for `batch`.
          num_examples: without `texts`; None: one of each denoiser, at least 3.
        """
        experiment = self.experiment
        if texts is None and (denoiser is not None or seed):
            raise ConfigError("denoiser and seed are of given texts: give texts, or remove them")
        if texts is not None and num_examples is not None:
            raise ConfigError("num_examples is of the corpus, and each given text is one example: remove it")
        if texts is None:
            page = open_page(experiment, title=self._source, num_examples=num_examples, show_progress=False)
            return Shown(page)
        texts, _ = listed(texts, has_pairs=takes_pairs(experiment, denoiser))
        windows, _, _ = text_windows(experiment, texts, denoiser=denoiser, seed=seed)
        chunk = Chunk(windows, batch_of(experiment, windows))
        return Shown(make_page_of_rows(experiment, [chunk], title=self._source))

    def batch(self, texts: Text | Sequence[Text], *, denoiser: str | None = None, seed: int = 0) -> Batch:
        """Returns the objective's batch of texts, of which row i is text i: the fields of contract/batch.py.

        What is hidden in a text is a function of the seed and the text.

        Args:
          texts: strings, or arrays of ids, up to a window long; pairs (prompt, response) for a run on such pairs.
          denoiser: the name of a mixture's denoiser; None: drawn for each text with the shares of the mixture.
          seed: of the draws.
        """
        texts, _ = listed(texts, has_pairs=takes_pairs(self.experiment, denoiser))
        windows, _, _ = text_windows(self.experiment, texts, denoiser=denoiser, seed=seed)
        return batch_of(self.experiment, windows)

    def logits(self, batch: Mapping[str, Any]) -> jax.Array:
        """Returns logits, float32 [B, L, V], for a batch of `batch`, of `batches`, or made by hand.

        Position i of the decoder, or of the encoder if there is no decoder, predicts the target tokens [:, i] of the
        batch. V is the number of rows of the output table, which may be more than the ids of the tokenizer.
        """
        return self._language_model.logits(batch)

    def losses(
        self, texts: Text | Sequence[Text], *, denoiser: str | None = None, seed: int = 0
    ) -> TextLoss | list[TextLoss]:
        """Returns the loss of each text under the run's objective: nats, scored tokens and bytes.

        The sums are those of train.evaluate for the same windows: a longer text is cut into windows. Arguments as for
        `batch`.
        """
        texts, is_one = listed(texts, has_pairs=takes_pairs(self.experiment, denoiser))
        found = text_losses(self.experiment, self.params, self.mesh, texts, denoiser=denoiser, seed=seed)
        return found[0] if is_one else found

    def log_likelihood(
        self,
        prompts: str | Sequence[str],
        continuations: str | Sequence[str],
        *,
        mode: str | None = None,
        draws: int = likelihood.DRAWS,
    ) -> Likelihood | list[Likelihood]:
        """Returns the log-likelihood of each continuation given its prompt, in nats, for models that continue texts.

        Of masked diffusion it is an estimate of a lower bound.

        A causal model, prefix LM or encoder-decoder reads the prompt as in training. For the likelihood of a text
        give the prompt "". The continuation is scored without an EOS after it.

        Args:
          prompts, continuations: two texts, or two lists of the same length. Both together fit in a row.
          mode: mode token, such as "[S]", of which the first suitable denoiser is taken; None: of any mode.
          draws: of masked diffusion: hidden parts of each continuation, of which the bound is estimated.

        Raises ConfigError for a run that continues no text, pairs that do not fit in a row, and lists of two lengths.
        """
        pairs, is_one = self._pairs(likelihood.continuation_denoiser(self.experiment, mode), prompts, continuations)
        found = likelihood.continuations(self._language_model, pairs, mode=mode, draws=draws)
        return found[0] if is_one else found

    def text_log_likelihood(
        self, texts: str | Sequence[str], *, mode: str | None = None, draws: int = likelihood.DRAWS
    ) -> Likelihood | list[Likelihood]:
        """Returns the log-likelihood of each text, of any length, in windows (evaluation.likelihood.rolling).

        mode, draws: as for `log_likelihood`.
        """
        texts, is_one = _strings(texts, "text")
        pairs, _ = self._pairs(likelihood.continuation_denoiser(self.experiment, mode), [""] * len(texts), texts)
        texts = [pair.continuation for pair in pairs]
        found = likelihood.rolling(self._language_model, texts, mode=mode, draws=draws)
        return found[0] if is_one else found

    def pseudo_log_likelihood(
        self, prompts: str | Sequence[str], continuations: str | Sequence[str], *, mode: str | None = None
    ) -> Likelihood | list[Likelihood]:
        """Returns the sum of the log-probabilities of a continuation's tokens, each given all other tokens.

        For masked models and denoisers (Salazar et al. 2020). It is not the likelihood of a text. Arguments as for
        `log_likelihood`.
        """
        pairs, is_one = self._pairs(likelihood.pseudo_denoiser(self.experiment, mode), prompts, continuations)
        found = likelihood.pseudo(self._language_model, pairs, mode=mode)
        return found[0] if is_one else found

    def generate(
        self, prompts: str | Sequence[str], *, batch_size: int = 16, **options: Any
    ) -> Generated | Filled | list[Any]:
        """Returns what train.generate writes: a continuation of each prompt, or the prompt with its holes filled in.

        The holes are sentinels (<extra_id_0>) or [MASK]s.

        Args:
          prompts: texts.
          batch_size: how many answers are generated together; they do not depend on this number.
          **options: mode, max_tokens, temperature (0.8; 0 selects the likeliest token), top_k, top_p, num_samples and
            seed, the fields of generate.texts.Options. Where masks are filled in: max_tokens, temperature, num_samples,
            seed, order, steps, block_length and remask.

        Returns for each prompt a Generated (prompt, answer, text, finished), with num_samples a list of these, or a
        Filled (prompt, text, candidates) in place of each. Raises ConfigError for options and prompts that
        train.generate refuses.
        """
        prompts, is_one = _strings(prompts, "prompt")
        _check_batch_size(batch_size)
        chosen = _checked_options(options)
        if not prompts:
            chosen.check()
            return []
        texts = [NamedText(text, f"prompt {number}") for number, text in enumerate(prompts, start=1)]
        model = self._language_model
        read, notes = read_texts(model.experiment, texts, chosen)
        for note in notes:
            warnings.warn(note, stacklevel=2)
        answers = answer_texts(model.experiment, model.params, texts, read, chosen, batch_size)
        found = [of_prompt if chosen.num_samples > 1 else of_prompt[0] for of_prompt in answers]
        return found[0] if is_one else found

    def classify(self, texts: str | Sequence[str], *, batch_size: int = 16) -> Classified | list[Classified]:
        """Returns the class of each text, for a run of configs/classification.py: prompt, label and probabilities.

        Raises ConfigError for another run, for an empty text, and for a text that is longer than a row.
        """
        if not classifies(self.experiment):
            raise ConfigError(f"objective.name={self.experiment.objective_name!r} predicts no class: use generate")
        texts, is_one = _strings(texts, "text")
        _check_batch_size(batch_size)
        batch = classifier_rows(self.experiment, texts)
        found = list(classify(self.experiment, self.params, self.mesh, texts, batch, batch_size))
        return found[0] if is_one else found

    def batches(self, start: int = 0, *, shard: tuple[int, int] = (0, 1)) -> Iterator[Batch]:
        """Returns an iterator over the training batches `start`, `start` + 1, ... of the run's corpus, without end.

        shard: as for cloze.batches.
        """
        return train_batches(self.experiment, start, shard)

    def evaluate(self, *, allow_changed_corpus: bool = False) -> dict[str, float]:
        """Returns the held-out metrics of train.evaluate.

        Raises ConfigError if the corpus has changed since the run was trained, unless `allow_changed_corpus` is set.
        """
        mesh = reading_mesh(self.experiment, batch_size=self.experiment.train.batch_size)
        run = make_run(self.experiment, mesh=mesh, show_progress=False)
        changed = self.workdir and describe_changed_corpus(self.workdir, self.experiment, run.corpora)
        if changed and not allow_changed_corpus:
            raise ConfigError(f"{changed}, or set allow_changed_corpus=True")
        return evaluate(run, self.params)

    def save(self, workdir: str | os.PathLike, params: Params) -> None:
        """Writes parameters from a training loop of one's own as the folder of a run, with the checkpoint of step 0.

        cloze.load, train.init_from and the commands that read a run read it, but train.main does not continue it: what
        the loop trained on and the state of its optimizer are unknown. With several JAX processes each must call this.

        Args:
          workdir: the new folder, on this machine or in a bucket.
          params: arrays with the names, shapes and dtypes (float32) of `self.params`.

        Raises ConfigError for the parameters of another model and for a folder that has a run, and OSError for one that
        cannot be written.
        """
        folder, experiment = Workdir(folder_name(workdir, "workdir")), self.experiment
        if difference := array_difference(array_types(params), array_types(experiment.params_shapes)):
            raise ConfigError(f"params is not a tree of this model: {difference}: give one like model.params")
        with Cluster().check_equal():
            if folder.has_config or folder.steps():
                raise ConfigError(f"workdir={folder} has a run or a model already: name a new folder")
            folder.create()
        with folder.checkpoints(keep=1) as checkpoints:
            checkpoints.save(0, {"params": params})
        with Cluster().check_equal():
            if jax.process_index() == 0:
                folder.write_tokenizer(experiment.tokenizer)
                folder.write_imported({"from": "cloze.Model.save"})
                corpus = {"tokenizer": experiment.tokenizer.fingerprint}
                code = code_of(experiment.learner, experiment.denoisers)
                folder.write_config(experiment.config | {"corpus": corpus} | code)

    def metrics(self, split: str | None = None) -> list[dict[str, Any]]:
        """Returns the lines of the run's metrics.jsonl. split: "train" or "eval"; None: all lines.

        Raises ConfigError for a model that is not that of a run.
        """
        if self.workdir is None:
            raise ConfigError("this model is not that of a run, so it has no metrics: cloze.load a run")
        if split not in (None, *get_args(Split)):
            raise ConfigError(f"split={split!r} must be 'train', 'eval' or None")
        return Workdir(self.workdir).metrics(split)

    @functools.cached_property
    def _language_model(self) -> LanguageModel:
        return LanguageModel(*language_model(self.experiment, self.params), self.mesh)

    def _pairs(
        self, denoiser: Denoiser, prompts: str | Sequence[str], continuations: str | Sequence[str]
    ) -> tuple[list[likelihood.Pair], bool]:
        (before, is_one), (after, _) = _strings(prompts, "prompt"), _strings(continuations, "continuation")
        if len(before) != len(after):
            raise ConfigError(f"there are {len(before)} prompts and {len(after)} continuations: give as many of both")
        encode = functools.partial(likelihood.encode_pair, self.experiment, denoiser)
        texts = enumerate(zip(before, after, strict=True), start=1)
        return [encode(*pair, where=f"text {number}") for number, pair in texts], is_one


def listed(texts: Any, *, has_pairs: bool = False) -> tuple[list[Any], bool]:
    """Returns the texts as a list, and whether they were one text.

    has_pairs: whether a text is a pair of strings, a prompt and its response. Otherwise a tuple is a sequence of texts.

    Raises ConfigError for what is neither a text nor a sequence.
    """
    if not isinstance(texts, Iterable) or isinstance(texts, Mapping | bytes):
        raise ConfigError(f"{texts!r} must be a text or a list of texts, not {type(texts).__name__}")
    is_pair = isinstance(texts, tuple) and len(texts) == 2 and all(isinstance(part, str) for part in texts)
    is_one = isinstance(texts, str | np.ndarray) or (has_pairs and is_pair)
    return [texts] if is_one else list(texts), is_one


def _strings(texts: Any, what: str) -> tuple[list[str], bool]:
    """Returns texts as `listed` does. Raises ConfigError for one that is no string, named by `what` and its number."""
    found, is_one = listed(texts)
    for number, text in enumerate(found, start=1):
        if not isinstance(text, str):
            raise ConfigError(f"{what} {number} must be a string, not {type(text).__name__}")
    return found, is_one


def folder_name(path: Any, name: str) -> str:
    """Returns the argument `name`, a path, as text. Raises ConfigError for what is no path."""
    if not isinstance(path, str | os.PathLike):
        raise ConfigError(f"{name} must be the name of a folder, not {type(path).__name__}")
    return os.fspath(path)


def train_batches(experiment: Experiment, start: int, shard: tuple[int, int]) -> Iterator[Batch]:
    """Returns an iterator without end over the training batches `start`, `start` + 1, ... of an experiment's corpus.

    shard: as for cloze.batches.
    """
    if not isinstance(start, int | np.integer) or isinstance(start, bool) or start < 0:
        raise ConfigError(f"start={start!r} must be the number of a batch: an integer of at least 0")
    data, rows = experiment.data, _rows_of(shard, experiment.train.batch_size)
    made = experiment.batches(open_corpora(experiment, show_progress=False).train_documents, local_rows=rows)
    return loader(made, start=int(start), threads=data.reader_threads, prefetch=data.prefetch_batches)


def _rows_of(shard: Any, batch_size: int) -> range:
    """Returns the rows of a batch in a shard. Raises ConfigError for what is no shard of a batch."""
    kinds = [isinstance(n, int | np.integer) for n in shard] if isinstance(shard, tuple | list) else []
    if kinds != [True, True] or not 0 <= shard[0] < shard[1]:
        raise ConfigError(f"shard={shard!r} must be two integers (index, count) with 0 <= index < count")
    index, count = shard
    if batch_size % count:
        raise ConfigError(f"train.batch_size={batch_size} must be a multiple of {count}, the count of shard={shard!r}")
    return range(index * batch_size // count, (index + 1) * batch_size // count)


def _checked_options(given: Mapping[str, Any]) -> Options:
    fields, chosen = {field.name: field for field in dataclasses.fields(Options)}, {}
    for name, value in given.items():
        if name not in fields:
            near = difflib.get_close_matches(name, [*fields, "batch_size"], n=1)
            hint = f"did you mean {near[0]}?" if near else f"choose one of {', '.join(fields)}"
            raise ConfigError(f"unknown option {name}={value!r}: {hint}")
        chosen[name] = _checked_option(fields[name], value)
    return Options(**chosen)


def _checked_option(field: dataclasses.Field, value: Any) -> Any:
    """Returns the value of a field of Options as a Python object. Raises ConfigError for one of another type."""
    if field.name in ("mode", "order") or (value is None and field.default is None):
        return value
    is_whole = int in (field.type, *get_args(field.type))
    if isinstance(value, bool) or not isinstance(value, int | np.integer if is_whole else int | float | np.number):
        kind = "an integer" if is_whole else "a number"
        raise ConfigError(f"{field.name}={value!r} must be {kind}, not {type(value).__name__}")
    return value.item() if isinstance(value, np.generic) else value


def _check_batch_size(batch_size: Any) -> None:
    if type(batch_size) is not int or batch_size < 1:
        raise ConfigError(f"batch_size={batch_size!r} must be an integer of at least 1")
