"""A config file for the command line in tests: `--config=tests/small_config.py[:objective,architecture]`."""

from ml_collections import ConfigDict

from tests.small_fields import small_config


def get_config(pair: str = "ul2,encoder_decoder") -> ConfigDict:
    config = ConfigDict(small_config(*pair.split(",")))
    config.data.source = "text"
    return config
