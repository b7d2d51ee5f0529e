import json
import os

import pytest

from configs.base import get_config
from contract.errors import ConfigError
from workdir.run_config import check_same_run, read_config, write_config

CONFIG = get_config().to_dict() | {"objective": {"name": "clm"}}
CONFIG["data"] |= {"path": "a.txt", "mode_tokens": ("[R]", "[S]"), "cache_dir": "~/x"}
CONFIG["train"] |= {"steps": 100}


def changed(**fields):
    config = json.loads(json.dumps(CONFIG))
    for name, value in fields.items():
        *groups, field = name.split("__")
        node = config
        for group in groups:
            node = node[group]
        node[field] = value
    return config


def test_another_text_is_called_a_text():
    old, new = ({**CONFIG, "corpus": {"fingerprint": name}} for name in ("aa", "bb"))
    with pytest.raises(ConfigError, match=r"another config \(digest of the corpus' text: \"aa\" -> \"bb\"\): restore"):
        check_same_run(old, new)


def test_a_written_config_is_read_back_as_the_same_run(tmp_path):
    write_config(tmp_path / "new" / "run", CONFIG)
    saved = read_config(tmp_path / "new" / "run")
    assert saved["data"]["mode_tokens"] == ["[R]", "[S]"]
    assert check_same_run(saved, CONFIG) == []
    assert os.listdir(tmp_path / "new" / "run") == ["config.json"]


@pytest.mark.parametrize("section", [None, [], "", 0, "x", [1]])
@pytest.mark.parametrize("name", ["code", "corpus"])
def test_a_section_that_is_no_group_is_damage(tmp_path, name, section):
    write_config(tmp_path, {**CONFIG, name: section})
    with pytest.raises(ConfigError, match=r"config.json is damaged: copy it from a backup"):
        read_config(tmp_path)


def test_every_field_that_matters_is_named_with_both_values():
    current = changed(seed=1, model__d_model=256, data__mode_tokens=["[R]"], train__steps=200)
    with pytest.raises(ConfigError) as error:
        check_same_run(CONFIG, current)
    message = str(error.value)
    assert "seed: 0 -> 1)" in message
    assert 'data.mode_tokens: ["[R]", "[S]"] -> ["[R]"]; ' in message
    assert "model.d_model: 128 -> 256; " in message
    assert "train.steps" not in message
    assert message.endswith("set these fields back, or choose another --workdir")
    assert "\n" not in message


def test_a_tokenizer_is_identified_by_its_contents_and_not_by_its_path():
    old, new = changed(data__tokenizer="there/a.model"), changed(data__tokenizer="run/tokenizer/a.model")
    old["corpus"] = new["corpus"] = {"tokenizer": "sentencepiece:1"}
    assert check_same_run(old, new) == ['data.tokenizer: "there/a.model" -> "run/tokenizer/a.model"']
    assert check_same_run(old, old) == []
    with pytest.raises(ConfigError, match=r'config \(data.tokenizer: "sentencepiece:1" -> "byte"\): set'):
        check_same_run(old, changed() | {"corpus": {"tokenizer": "byte"}})


@pytest.mark.parametrize("field", ["path", "heldout_path", "sources.web.path", "sources.web.heldout_path"])
def test_a_corpus_is_identified_by_its_text_and_not_by_its_path(field):
    name = f"data.{field}"
    old, new = ({name: path, "corpus": {"fingerprint": "aa", "heldout": "cc"}} for path in ("a.txt", "b.txt"))
    assert check_same_run(old, new) == [f'{name}: "a.txt" -> "b.txt"']
    new["corpus"] = {"fingerprint": "bb", "heldout": "dd"}
    with pytest.raises(ConfigError, match=rf'config \({name}: "a.txt" -> "b.txt"; digest of .* set these fields back'):
        check_same_run(old, new)
    with pytest.raises(ConfigError, match=r"restore the files of the corpus, which have changed, or choose another"):
        check_same_run(old, new | {name: "a.txt"})


def test_fields_that_only_one_config_has_are_changes():
    older = changed()
    del older["model"]["d_model"]
    with pytest.raises(ConfigError, match=r"model.d_model: \(none\) -> 128"):
        check_same_run(older, CONFIG)
    with pytest.raises(ConfigError, match=r"model.d_model: 128 -> \(none\)"):
        check_same_run(CONFIG, older)


@pytest.mark.parametrize(
    ("field", "line"),
    [
        ("train__steps", "train.steps: 100 -> 7"),
        ("train__grad_accum_steps", "train.grad_accum_steps: 1 -> 7"),
        ("data__cache_dir", 'data.cache_dir: "~/x" -> 7'),
        ("mesh__fsdp", "mesh.fsdp: 1 -> 7"),
    ],
)
def test_changes_that_are_allowed_are_reported(field, line):
    assert check_same_run(CONFIG, changed(**{field: 7})) == [line]


@pytest.mark.parametrize("field", ["train__batch_size", "train__eval_windows", "data__source", "seed"])
def test_changes_that_are_not_allowed_are_errors(field):
    with pytest.raises(ConfigError, match=field.replace("__", ".")):
        check_same_run(CONFIG, changed(**{field: 7}))


def test_a_folder_that_is_not_a_workdir_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"is not the folder of a run: .*config.json does not exist"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text('{"seed": ')
    with pytest.raises(ConfigError, match=r"config.json cannot be read"):
        read_config(tmp_path)


def test_of_many_fields_the_objective_and_nine_others_are_named():
    other = changed(objective__name="mlm", **{f"data__new_{k:02}": k for k in range(20)})
    with pytest.raises(ConfigError, match=r'another config \(objective.name: "clm" -> "mlm"; data.new_00.*') as error:
        check_same_run(CONFIG, other)
    assert "data.new_08" in str(error.value) and "data.new_09" not in str(error.value)
    assert "; and 11 more fields): set these fields back, or choose another --workdir" in str(error.value)
