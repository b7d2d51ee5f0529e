"""A Hugging Face folder as the folder of a run: python -m train.convert --from=DIR --workdir=RUN

train.evaluate, train.generate, train.export, train.show and train.init_from read the new folder as that of a run, with
the model as the checkpoint of step 0. The model is the folder's; the objective follows from its class: CLM for GPT-2
and Llama, MLM for BERT and RoBERTa, NSP for BERT with its sentence head, span corruption for T5, BART's noise for BART,
ELECTRA for a folder that has the folders generator and discriminator. --config=configs/OTHER.py chooses another one,
and --config.data.source and so on the corpus of held-out text. Only safetensors are read, never a pickled file. See
docs/huggingface.md.
"""

import sys

from absl import flags

from command.flags import (
    config_fields,
    config_overrides,
    define_config,
    parse_flags,
    run_command,
)
from contract.errors import ConfigError
from files.atomic import check_new_folder
from huggingface.convert import convert, default_config

_FLAGS = flags.FlagValues()
define_config(_FLAGS)
_FROM = flags.DEFINE_string(
    "from", None, "Hugging Face folder: config.json, safetensors, tokenizer.", _FLAGS, required=True
)
_WORKDIR = flags.DEFINE_string("workdir", None, "Folder to write, as of a run.", _FLAGS, required=True)


def main() -> None:
    """Reads the command line, writes the folder of a run, and says what to do with it."""
    argv, path = sys.argv, _path(sys.argv)
    is_given = any(argument.split("=")[0] == "--config" for argument in argv)
    if path == "":
        raise ConfigError("--from= is empty: name a Hugging Face folder")
    if path and not is_given:  # overrides can only follow the config
        argv = [argv[0], f"--config={default_config(path)}", *argv[1:]]
    parse_flags(_FLAGS, __doc__, argv)
    check_new_folder(_WORKDIR.value, "--workdir")
    lines = convert(
        _FROM.value,
        _WORKDIR.value,
        config_fields(_FLAGS),
        overrides=config_overrides(_FLAGS),
        is_default_config=not is_given,
    )
    for line in lines:
        print(line)


def _path(argv: list[str]) -> str | None:
    """Returns the value of --from, which determines the config and so the other flags; None if it is missing."""
    given = flags.FlagValues()
    path = flags.DEFINE_string("from", None, "", flag_values=given)
    try:
        given(argv, known_only=True)
    except flags.Error:  # parse_flags reports the error
        return None
    return path.value


if __name__ == "__main__":
    run_command(main)
