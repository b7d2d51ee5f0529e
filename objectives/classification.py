"""Classification: read a text, predict its class. Evaluates a pre-trained model on a downstream task."""

import dataclasses
from typing import ClassVar, Literal

import numpy as np

from contract.errors import ConfigError
from objectives.algebra.sequences import Sequences
from objectives.objective import InputsTargets, Objective, OutputLengths


@dataclasses.dataclass(frozen=True)
class Classification(Objective):
    """A piece of a document, and the document's class. No token is hidden and none is predicted.

    classes: names of the classes, as the corpus labels its documents, in the order of their ids. The config names them,
        instead of the corpus, so that ids have the same meaning on every machine. data.on_unusable decides what happens
        to documents of other classes.

    pooling: the state from which the class is predicted: "position", that at one position; "mean", the mean over the
        row's tokens, in an encoder-decoder over the encoder's (models.heads.mean_state). Few labels suffice for the
        mean where the state at [CLS] was not trained to represent the text.

    With "position" the class is predicted from one position, the only one with a loss weight: in an encoder from [CLS],
    which precedes the text (Devlin et al. 2019); in a decoder from the position that has read the whole text, whose
    target is an EOS (Radford et al. 2018). In an encoder a [SEP] ends the text. On an encoder-decoder the encoder reads
    the text and an EOS, as in pre-training, and the class is predicted from the only position of the decoder, which
    reads its start token and attends to the encoder (EncT5, Liu et al. 2021). Deviation: EncT5 keeps one layer of the
    decoder and has a new embedding for its start. BART's decoder reads the text a second time instead.
    """

    classes: tuple[str, ...]
    pooling: Literal["position", "mean"] = "position"

    architectures: ClassVar = frozenset({"encoder_only", "decoder_only", "encoder_decoder"})
    documents: ClassVar = ("split",)
    extra_columns: ClassVar = ("labels",)
    one_example_per_row: ClassVar = True
    learner: ClassVar = "classification"
    prompting: ClassVar = None

    @property
    def num_classes(self) -> int:
        """The number of classes."""
        return len(self.classes)

    def check(self, field):
        if len(set(self.classes)) < max(len(self.classes), 2):
            raise ConfigError(f"{field}.classes={self.classes} must name two classes or more, each once")
        return []

    def output_lengths(self, raw):
        return OutputLengths(raw + 1, np.ones_like(raw), raw + 2)  # see objectives/rows/layout.py

    def corrupt(self, tokens, lengths, keys, vocab, *, labels):
        end = Sequences(np.full((len(tokens), 1), vocab.eos, np.int32), np.ones(len(tokens), np.int64))
        return InputsTargets(Sequences(tokens, lengths), end, labels)

    def hidden_mask(self, tokens, lengths, keys, vocab, *, labels):
        return np.zeros(tokens.shape, bool)

    def restore(self, inputs, targets, vocab):
        return inputs
