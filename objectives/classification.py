"""Classification: read a text, say which class it is of. What a pre-trained model is judged by downstream."""

import dataclasses
from typing import ClassVar

import numpy as np

from contract.errors import ConfigError
from objectives.algebra.sequences import Sequences
from objectives.objective import InputsTargets, Objective
from objectives.rows.lengths import OutputLengths


@dataclasses.dataclass(frozen=True)
class Classification(Objective):
    """A piece of a document, and the document's class. Nothing is hidden, and no token is predicted.

    classes: names of the classes, as the data label its documents, in the order of their numbers. Named and not counted
        off the data, so that a number means the same on every machine. data.on_unusable says what becomes of documents
        of other classes.

    The label is read at one position: of an encoder at [CLS], which stands before the text (Devlin et al. 2019); of a
    decoder where it has read the whole text, which is where it predicts the one target, an EOS (Radford et al. 2018).
    Loss weights mark that position and nothing else. On the encoder a [SEP] ends the text.
    """

    classes: tuple[str, ...]

    architectures: ClassVar = frozenset({"encoder_only", "decoder_only"})
    documents: ClassVar = ("split",)
    eos_in_windows: ClassVar = False
    extra_columns: ClassVar = ("labels",)
    one_example_per_row: ClassVar = True

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    def check(self, field: str) -> list[str]:
        if len(set(self.classes)) < max(len(self.classes), 2):
            raise ConfigError(f"{field}.classes={self.classes} must be the names of two classes or more, each once")
        return []

    def output_lengths(self, raw):
        return OutputLengths(raw + 1, np.ones_like(raw), raw + 2)  # with [CLS] and [SEP]; a decoder has only an EOS

    def num_sentinels(self, raw):
        return np.zeros_like(raw)

    def expected(self):
        return {}

    def hidden(self, tokens, lengths, keys, vocab, *, labels):
        return np.zeros(tokens.shape, bool)

    def corrupt(self, tokens, lengths, keys, vocab, *, labels):
        end = Sequences(np.full((len(tokens), 1), vocab.eos, np.int32), np.ones(len(tokens), np.int64))
        return InputsTargets(Sequences(tokens, lengths), end, labels)

    def restore(self, inputs, targets, vocab):
        return inputs
