"""The flags of a command: when help is printed."""

import re

import pytest
from absl import flags

import configs.base
from command.flags import (
    _leaves,
    config_fields,
    config_overrides,
    define_code,
    define_config,
    execute_file,
    field_descriptions,
    objective_descriptions,
    parse_flags,
    resolve,
)
from configs.corpora import EXPERIMENTS
from contract.errors import ConfigError
from tests.train.subprocesses import ROOT

# The text of this exception cannot be read.
HOSTILE = "class Hostile(Exception):\n    def __str__(self):\n        raise ValueError"


def flag_values():
    values = flags.FlagValues()
    flags.DEFINE_string("prompt", None, "A text.", values)
    flags.DEFINE_bool("all", False, "Everything.", values)
    return values


@pytest.mark.parametrize("arguments", [["-h"], ["--help"], ["--prompt", "x", "--help"]])
def test_help_is_printed_where_it_is_asked_for(arguments, capsys):
    with pytest.raises(SystemExit) as end:
        parse_flags(flag_values(), "Usage.", ["command", *arguments])
    assert end.value.code == 0 and "--prompt" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config.data.input_length=8"], "--config.data.input_length=8: did you mean data.inputs_length?"),
        (["--config.inputs_length=8"], "--config.inputs_length=8: did you mean data.inputs_length?"),
        (
            ["--optimizer.b1=0.5"],
            "--optimizer.b1: a field of the config is written --config.optimizer.b1=",
        ),
        (["--config.seed.x=1"], "--config.seed.x=1: did you mean seed?"),
        (["--config.objective.schedul=linear"], "did you mean objective.schedule?"),
        (
            ["--config.objective.generator_size=0.5"],
            "this objective has none; start from another's config, with --same_model",
        ),
        (
            ["--config.objective.final_mask_rate=0.1"],
            "=0.1: this config has no such schedule: write it in a config file",
        ),
        (
            ["--config.objective.denoisers.r1.begin_step=3"],
            "this config has no such schedule: write it in a config file",
        ),
        (["--config.no_such_thing=1"], "--config.no_such_thing=1: --help prints the fields of this config"),
        (["--config.objective.noise_density=0.3"], "=0.3: did you mean objective.denoisers."),
        (["--config.seed=1", "--config.seed=2"], "--config.seed is given 2 times: give it once"),
        (["--config.train.steps=ten"], "--config.train.steps=ten must be a whole number, such as 1000"),
        (["--config.train.steps=1.5"], "--config.train.steps=1.5 must be a whole number, such as 1000"),
        (["--config.train.steps="], "--config.train.steps= must be a whole number, such as 1000"),
        (["--config.model=x"], "--config.model=x must be a group of fields: set one of them, as in --config.model."),
        (["--config.optimizer.learning_rate=x"], "--config.optimizer.learning_rate=x must be a number, such as 0.1"),
        (["--config.model.use_bias=2"], "--config.model.use_bias=2 must be True or False"),
        (["--config.data.mode_tokens=('a'"], "--config.data.mode_tokens=('a' is not a tuple: write it as in"),
        (["--config.data.mode_tokens=[R],[S]"], "--config.data.mode_tokens=[R],[S] is not a tuple: write it as in"),
        (["--config.optimizer.no_decay=norm,bias"], "--config.optimizer.no_decay=norm,bias is not a tuple"),
        (["--config.data.mode_tokens=a)"], "--config.data.mode_tokens=a) is not a tuple"),
        (["--config.data.mode_tokens=(a, b"], "Error while parsing string: (a, b as tuple"),
    ],
)
def test_overrides_that_cannot_be_meant(arguments, message, monkeypatch):
    monkeypatch.chdir(ROOT)
    values, argv = flags.FlagValues(), ["command", "--config=configs/ul2.py", *arguments]
    define_config(values, argv=argv)
    with pytest.raises(ConfigError) as error:
        parse_flags(values, "Usage.", argv)
    assert message in str(error.value)


def test_same_model_gives_the_model_and_not_the_objective_and_overrides_count(monkeypatch):
    values = flags.FlagValues()
    arguments = ["--config=configs/span_corruption.py", "--same_model=configs/clm.py", "--config.model.num_layers=3"]
    monkeypatch.setattr("sys.argv", ["test", *arguments])  # where the parser looks for overrides
    define_config(values, same_model=True)
    parse_flags(values, "")
    there, here = (resolve(f"configs/{name}.py", {}, "") for name in ("clm", "span_corruption"))
    ours = here | {"model": there["model"] | {"num_layers": 3}, "optimizer": there["optimizer"], "loss": there["loss"]}
    ours["data"] = here["data"] | {name: there["data"][name] for name in ("inputs_length", "targets_length")}
    ours["train"] = here["train"] | {"batch_size": there["train"]["batch_size"]}
    assert here["model"]["architecture"] != there["model"]["architecture"]
    assert config_fields(values) == ours
    assert config_overrides(values) == {"model.num_layers": 3}  # a model of train.init_from comes before --same_model


def test_a_file_of_same_model_that_is_no_config_is_named(monkeypatch):
    monkeypatch.setattr("sys.argv", ["test", "--config=configs/ul2.py", "--same_model=configs/cl.py"])
    values = flags.FlagValues()
    define_config(values, same_model=True)
    parse_flags(values, "")
    with pytest.raises(
        ConfigError, match=r"^--same_model=configs/cl.py is not a file: did you mean --same_model=configs/clm.py"
    ):
        config_fields(values)


def test_one_word_is_a_tuple(monkeypatch):
    monkeypatch.chdir(ROOT)
    values, argv = flags.FlagValues(), ["command", "--config=configs/ul2.py", "--config.data.mode_tokens=[R]"]
    define_config(values, argv=argv)
    parse_flags(values, "Usage.", argv)
    assert values["config"].value.data.mode_tokens == ("[R]",)


def test_a_file_without_get_config_is_no_config_also_after_another_one(monkeypatch):
    monkeypatch.chdir(ROOT)
    for name in ("configs/ul2.py", "configs/recipes.py"):
        values, argv = flags.FlagValues(), ["command", f"--config={name}"]
        define_config(values, argv=argv)
        if name == "configs/ul2.py":
            parse_flags(values, "Usage.", argv)
    with pytest.raises(ConfigError, match=r"^--config=configs/recipes.py is no config: it has no function get_config"):
        parse_flags(values, "Usage.", argv)


def test_values_of_a_list_may_be_given_one_by_one(monkeypatch):
    monkeypatch.chdir(ROOT)
    argv = ["command", "--config=configs/ul2.py", *["--config.train.trackers=wandb", "--config.train.trackers=trackio"]]
    values = flags.FlagValues()
    define_config(values, argv=argv)
    parse_flags(values, "Usage.", argv)
    assert values["config"].value.train.trackers == ("wandb", "trackio")


def parsed_with_config(*arguments):
    values = flags.FlagValues()
    argv = ["command", *arguments]
    define_config(values, argv=argv)
    parse_flags(values, "Usage.", argv)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([], "--config.train.steps=600  # updates"),
        (["--config=tests/small_config.py"], "--config.train.steps=2  # updates"),
    ],
)
def test_help_lists_and_describes_the_fields_of_the_config(arguments, line, capsys):
    with pytest.raises(SystemExit):
        parsed_with_config(*arguments, "--help")
    assert f"  {line}\n" in capsys.readouterr().out


def test_every_field_that_all_configs_have_is_described():
    fields = {name for name, _ in _leaves(configs.base.get_config().to_dict())}
    described = field_descriptions()
    assert [name for name in sorted(fields) if not described.get(name)] == []
    assert described["data.source"].startswith('The corpus: "stdlib" and "stdlib_functions" are the Python')
    assert described["data.documents"].startswith('documents: "join" A window continues into the next document.')


@pytest.mark.parametrize("arguments", [["--config="], ["--config"], ["--config", "--workdir=x"]])
def test_another_flag_is_not_the_value_of_config(arguments):
    with pytest.raises(ConfigError, match="--config has no value: name one of configs/"):
        parsed_with_config(*arguments)


def test_a_path_that_is_relative_to_another_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"is relative to this folder; cloze's configs are in /.*/configs$"):
        parsed_with_config("--config=configs/ul2.py")


def test_a_preset_of_a_config_without_presets_is_named():
    with pytest.raises(ConfigError, match=r"--config=configs/base.py:x names a preset, .* has none: remove :x"):
        parsed_with_config("--config=configs/base.py:x")


@pytest.mark.parametrize("config", EXPERIMENTS)
def test_every_field_of_an_objective_is_described(config):
    """ELECTRA's fields are those of MLM, too, and UL2's those of its denoisers. Schedules are described elsewhere."""
    fields = EXPERIMENTS[config].get_config().objective.to_dict()
    described = objective_descriptions(fields)
    missing = {name.rpartition(".")[2] for name, _ in _leaves({"objective": fields}) if name not in described}
    scheduled = {name for name in missing if name.startswith(("schedule", "begin_", "end_", "final_", "phase_"))}
    assert missing - scheduled <= {"name", "mode", "weight", "loss_weight"}
    if config == "electra":
        assert described["objective.random_token_rate"].startswith("probabilities that a selected token is masked")


@pytest.mark.parametrize("body", ["def get_config():\n    sys.exit(0)\n", "sys.exit(0)\n"])
def test_a_config_that_ends_the_program_is_an_error(body, tmp_path):
    (tmp_path / "ends.py").write_text(f"import sys\n\n{body}")
    with pytest.raises(ConfigError, match=r"^--config=.*ends.py: it ends the program, with the status 0$"):
        parsed_with_config(f"--config={tmp_path / 'ends.py'}")
    with pytest.raises(ConfigError, match=r"^--config=.*ends.py: it ends the program, with the status 0$"):
        parsed_with_config(f"--config={tmp_path / 'ends.py'}", "--help")


def test_a_config_that_raises_no_exception_is_named(tmp_path):
    (tmp_path / "own.py").write_text("class Own(BaseException): pass\n\ndef get_config():\n    raise Own('why')\n")
    with pytest.raises(ConfigError, match=r"^--config=.*own.py: why$"):
        parsed_with_config(f"--config={tmp_path / 'own.py'}")
    for file, said in (
        ("raise GeneratorExit", "GeneratorExit"),
        (f"{HOSTILE}\nraise Hostile", "(its text cannot be read:"),
    ):
        (tmp_path / "own.py").write_text(file)
        with pytest.raises(ConfigError, match=rf"^--config=.*own.py: {re.escape(said)}"):
            parsed_with_config(f"--config={tmp_path / 'own.py'}")
    (tmp_path / "own.py").write_text("def get_config():\n    raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        parsed_with_config(f"--config={tmp_path / 'own.py'}")


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (
            f"{HOSTILE}\nraise Hostile",
            r"^--code=.*own.py cannot be read: Hostile: \(its text cannot be read: ValueError\)$",
        ),
        ("raise GeneratorExit", r"^--code=.*own.py cannot be read: GeneratorExit$"),
        ("class Own(BaseException): pass\nraise Own('x')", r"^--code=.*own.py cannot be read: Own: x$"),
        (None, r"^--code=.*own.py does not exist: name a file that ends in .py$"),
        ("import no_such_module", r"^--code=.* cannot be read: ModuleNotFoundError: No module named 'no_such_module'$"),
        ("import sys; sys.exit(0)", r"^--code=.* cannot be read: SystemExit: 0$"),
        ("raise ValueError('two\\nlines')", r"^--code=.* cannot be read: ValueError: two lines$"),
    ],
)
def test_a_file_of_code_that_cannot_be_executed_is_one_line(contents, message, tmp_path):
    file, values = tmp_path / "own.py", flag_values()
    if contents is not None:
        file.write_text(contents)
    define_code(values)
    with pytest.raises(ConfigError, match=message):
        parse_flags(values, "", ["command", f"--code={file}"])


def test_a_file_of_code_with_another_ending_is_named_as_such(tmp_path):
    (tmp_path / "own.txt").write_text("")
    with pytest.raises(ConfigError, match=r"^--code=.*own.txt is not a Python file: name a file that ends in .py$"):
        execute_file(str(tmp_path / "own.txt"), "--code")


def test_a_file_of_code_may_define_dataclasses_with_annotations_that_are_text(tmp_path):
    """dataclasses looks ClassVar up in the module's entry of sys.modules."""
    file = tmp_path / "own.py"
    file.write_text(
        "from __future__ import annotations\nimport dataclasses\nfrom typing import ClassVar\n\n"
        "@dataclasses.dataclass\nclass Own:\n    a: int\n    b: ClassVar[int] = 2\n"
    )
    assert execute_file(str(file), "--code").Own(1).b == 2
