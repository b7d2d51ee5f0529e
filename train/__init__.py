import command.imports  # noqa: F401
