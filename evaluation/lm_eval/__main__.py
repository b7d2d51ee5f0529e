"""lm-eval with the model "cloze", a run of this project: python -m train.lm_eval --model_args workdir=RUN --tasks NAME

The command line is that of `lm_eval` (EleutherAI's lm-evaluation-harness), which itself knows the models of its own
package alone. --model and --batch_size have the defaults cloze and auto. docs/lm_eval.md describes --model_args.

The YAML file of a task, of --include_path or --tasks, can name Python functions (!function), which are executed.
"""

import pathlib
import sys
import traceback

from cluster.devices import use_compilation_cache
from command.flags import run_command
from contract.errors import ConfigError


def main() -> None:
    """Runs lm-eval's command, in which "cloze" is a model.

    Raises ConfigError for what lm-eval refuses with a ValueError, such as an unknown task, and without the
    extra.
    """
    try:
        import lm_eval
        from lm_eval import utils
        from lm_eval._cli import HarnessCLI
    except ImportError:
        raise ConfigError("lm-eval is not installed: pip install -e '.[lm_eval]'") from None
    import evaluation.lm_eval.model

    if {"--help", "-h"} & set(sys.argv[1:]):
        print(__doc__)
    use_compilation_cache()
    utils.setup_logging()
    cli = HarnessCLI()
    args = cli.parse_args()
    if getattr(args, "command", None) == "run" and not args.config:
        args.model = args.model or evaluation.lm_eval.model.NAME
        args.batch_size = getattr(args, "batch_size", "auto")
    try:
        cli.execute(args)
    except (ValueError, FileNotFoundError, NotImplementedError) as error:  # the last one: of chat templates
        raised_in = pathlib.Path(traceback.extract_tb(error.__traceback__)[-1].filename)
        if pathlib.Path(lm_eval.__file__).parent not in raised_in.parents:
            raise
        raise ConfigError(" ".join(str(error).split())) from error


if __name__ == "__main__":
    run_command(main)
