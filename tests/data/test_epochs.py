"""How many windows are one pass over the documents, by hand."""

import dataclasses

import numpy as np
import pytest

from contract.errors import ConfigError
from contract.windows import BatchSpec, Capacity, Ramp, RowPlan, WindowSpec
from data.windows.windowing import windows_per_epoch
from tests.data.corpus import all_documents, batches_of, store_of

LENGTHS = [5, 12, 7, 7, 20, 9]  # bytes of the documents; 60 together
JOIN = WindowSpec("join", 1.0, 9, "join", False)
WHOLE = WindowSpec("whole", 1.0, 20, "whole", False, capacities=(Capacity("data.inputs_length", 21, True, True, 1),))


@pytest.fixture(scope="module")
def documents(tmp_path_factory):
    texts = [chr(97 + k) * n for k, n in enumerate(LENGTHS)]
    return all_documents(store_of(tmp_path_factory.mktemp("corpus"), texts))


def windows_of(documents, *specs, plan=None, examples_per_row=1):
    return windows_per_epoch(documents, BatchSpec(specs, examples_per_row, pad_id=0, plan=plan))


@pytest.mark.parametrize(
    ("spec", "windows"),
    [
        (JOIN, 7),  # ceil(60 / 9)
        (dataclasses.replace(JOIN, eos=True), 8),  # ceil((60 + 6) / 9)
        (dataclasses.replace(JOIN, documents="pack"), 7),
        (dataclasses.replace(JOIN, documents="split"), 1 + 2 + 1 + 1 + 3 + 1),
        (WHOLE, 4),  # with an EOS each: 21; 13 + 8; 10 + 8; 6
    ],
)
def test_windows_of_one_denoiser(documents, spec, windows):
    assert windows_of(documents, spec) == windows


@pytest.mark.parametrize("spec", [JOIN, WHOLE], ids=lambda spec: spec.name)
@pytest.mark.parametrize("epochs", [1, 3])
def test_so_many_windows_contain_every_token_once_per_epoch(documents, spec, epochs):
    windows = windows_of(documents, spec)
    made = batches_of(documents, [spec], batch_size=windows)
    read = [made[n] for n in range(epochs)]
    tokens = np.concatenate([row[:length] for batch in read for row, length in zip(*batch[:2], strict=True)])
    counts = np.bincount(tokens - 97 - 3)  # the byte tokenizer's id of "a" is 97 + 3
    assert counts.tolist() == [epochs * n for n in LENGTHS]


def test_denoisers_that_read_alike_share_an_epoch(documents):
    other = dataclasses.replace(JOIN, name="other", weight=0.5, ramp=Ramp(0, 10, 0.1))
    never = dataclasses.replace(JOIN, name="never", weight=0.0, raw_length=4)
    assert windows_of(documents, JOIN, other, never) == 7


def test_denoisers_that_read_differently_have_no_common_epoch(documents):
    other = dataclasses.replace(JOIN, name="other", raw_length=12)
    with pytest.raises(ConfigError, match=r"train\.epochs .* \(join 9, other 12 raw tokens\): set train\.steps"):
        windows_of(documents, JOIN, other)


def test_a_plan_has_an_epoch_where_its_windows_have_one_length(documents):
    def plan_of(*lengths):
        zeros = np.zeros((1, 2), np.int32)
        return RowPlan(zeros, np.array([lengths], np.int32), zeros)

    assert windows_of(documents, JOIN, plan=plan_of(12, 12), examples_per_row=2) == 5
    with pytest.raises(ConfigError, match=r"\(join 9, join 12 raw tokens\)"):
        windows_of(documents, JOIN, plan=plan_of(9, 12), examples_per_row=2)
