"""Environment variables that `--engine flower` sets for the ServerApp that it starts."""

ERROR_FILE_VARIABLE = "FLOWER_VFL_ERROR_FILE"
"""Variable with the file to which the ServerApp of `--engine flower` writes its error: Flower reports no error."""

STARTER_VARIABLE = "FLOWER_VFL_STARTER"
"""Variable with a file that `--engine flower` removes when it ends or is interrupted; the run must then end too."""
