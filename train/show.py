"""The command `python -m train.show`."""

import runpy

if __name__ == "__main__":
    runpy.run_module("show", run_name="__main__")
