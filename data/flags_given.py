"""The check that a command line does not contradict itself."""

from absl import flags

from contract.errors import ConfigError


def check_given_once(flag_values: flags.FlagValues) -> None:
    """Raises ConfigError for a flag that the parsed command line has twice, unless its values form a list."""
    for name in flag_values:
        flag = flag_values[name]
        if flag.present > 1 and not isinstance(flag, flags.MultiFlag):
            raise ConfigError(f"--{name} is given {flag.present} times: give it once")
