"""The code of docs/only_the_data.md, run as written, one block after the other."""

import pathlib
import re

import numpy as np

from contract.batch import check_batch

PAGE = (pathlib.Path(__file__).parents[2] / "docs" / "only_the_data.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_every_block_runs_as_written(corpus, tmp_path, monkeypatch, capsys):
    (tmp_path / "texts").symlink_to(corpus / "text")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))  # the default data.cache_dir
    names, printed = {}, []
    for block in BLOCKS:
        first_line = PAGE[: PAGE.index(block)].count("\n")
        exec(compile("\n" * first_line + block, "docs/only_the_data.md", "exec"), names)
        printed.append(capsys.readouterr().out)
    assert printed[1] == "(16, 64)\n" and len(BLOCKS) == 6
    batch, text, vocab = (names[name] for name in ("batch", "text", "vocab"))
    check_batch(batch, "encoder_decoder")
    assert (batch["encoder_segment_ids"] > 0).all(), "the windows fill the rows"
    inputs, targets = (
        batch[f"{side}_tokens"][0][batch[f"{side.partition('_')[0]}_segment_ids"][0] > 0]
        for side in ("encoder_input", "decoder_target")
    )
    restored = names["objective"].restore(inputs, targets, vocab)
    np.testing.assert_array_equal(restored, text[0])
    assert float(names["nats"]) < 0.9 * np.log(vocab.size)
