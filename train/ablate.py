"""The command `python -m train.ablate`."""

import runpy

if __name__ == "__main__":
    runpy.run_module("studies", run_name="__main__")
