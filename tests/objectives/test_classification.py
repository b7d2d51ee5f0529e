"""Classification: the rows of every architecture."""

import numpy as np
import pytest

from contract.batch import check_batch
from contract.errors import ConfigError
from contract.windows import Windows
from objectives import Classification, denoisers_of
from objectives.objective import RowShape
from tests.objectives.helpers import make_collator, vocab

VOCAB = vocab()
TEXTS = np.asarray([[10, 11, 12], [20, 7, 7]], np.int32)
WINDOWS = Windows(
    TEXTS, np.asarray([3, 1]), np.arange(2), np.zeros(2, np.uint64), np.zeros(2, np.int32),
    labels=np.asarray([1, 0], np.int32),
)  # fmt: skip


def collator(architecture, classes=("news", "sport"), length=6):
    return make_collator(
        denoisers_of(Classification(classes), "classification"),
        RowShape(architecture, length, length, 1),
        VOCAB,
        documents="split",
        bidirectional_inputs=False,
    )


def test_an_encoder_predicts_the_label_at_cls():
    batch = collator("encoder_only")(WINDOWS, 2)
    check_batch(batch, "encoder_only")
    texts = [[VOCAB.cls, 10, 11, 12, VOCAB.sep, 0], [VOCAB.cls, 20, VOCAB.sep, 0, 0, 0]]
    assert batch["encoder_input_tokens"].tolist() == batch["encoder_target_tokens"].tolist() == texts
    assert batch["encoder_loss_weights"].tolist() == [[1, 0, 0, 0, 0, 0]] * 2
    assert batch["encoder_segment_ids"].tolist() == [[1, 1, 1, 1, 1, 0], [1, 1, 1, 0, 0, 0]]
    assert batch["sentence_labels"].tolist() == [1, 0] and batch["sentence_labels"].dtype == np.int32


def test_a_decoder_predicts_the_label_after_the_text():
    batch = collator("decoder_only")(WINDOWS, 2)
    check_batch(batch, "decoder_only")
    assert batch["decoder_input_tokens"].tolist() == [[0, 10, 11, 12, 0, 0], [0, 20, 0, 0, 0, 0]]
    assert batch["decoder_target_tokens"].tolist() == [[10, 11, 12, VOCAB.eos, 0, 0], [20, VOCAB.eos, 0, 0, 0, 0]]
    assert batch["decoder_loss_weights"].tolist() == [[0, 0, 0, 1, 0, 0], [0, 1, 0, 0, 0, 0]]
    assert not batch["decoder_bidirectional_mask"].any()
    assert batch["sentence_labels"].tolist() == [1, 0]


def test_an_encoder_decoder_predicts_the_label_at_the_decoders_start():
    batch = collator("encoder_decoder")(WINDOWS, 2)
    check_batch(batch, "encoder_decoder")
    eos = VOCAB.eos
    assert batch["encoder_input_tokens"].tolist() == [[10, 11, 12, eos, 0, 0], [20, eos, 0, 0, 0, 0]]
    assert batch["encoder_segment_ids"].tolist() == [[1, 1, 1, 1, 0, 0], [1, 1, 0, 0, 0, 0]]
    assert batch["decoder_input_tokens"].tolist() == [[0, 0, 0, 0, 0, 0]] * 2
    assert batch["decoder_target_tokens"].tolist() == [[eos, 0, 0, 0, 0, 0]] * 2
    assert batch["decoder_loss_weights"].tolist() == batch["decoder_segment_ids"].tolist() == [[1, 0, 0, 0, 0, 0]] * 2
    assert batch["sentence_labels"].tolist() == [1, 0]


@pytest.mark.parametrize("architecture", ["encoder_only", "decoder_only"])
def test_a_window_fills_a_row_and_its_spec_lists_the_classes(architecture):
    [spec] = collator(architecture).batch_spec.windows
    assert spec.raw_length == 4 and spec.documents == "split" and not spec.eos
    assert spec.extra_columns == ("labels",) and spec.classes == ("news", "sport")


@pytest.mark.parametrize("classes", [(), ("news",), ("news", "news")])
def test_fewer_than_two_different_classes_raise(classes):
    with pytest.raises(ConfigError, match=r"objective\.classes=.* must name two classes or more, each once"):
        collator("encoder_only", classes)
