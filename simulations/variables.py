"""Environment variables that `--engine flower` sets for the ServerApp that it starts."""

ERROR_FILE_VARIABLE = "FLOWER_VFL_ERROR_FILE"
"""The file in which the ServerApp of `--engine flower` leaves its error: Flower passes on an exit code only."""

STARTER_VARIABLE = "FLOWER_VFL_STARTER"
"""The process that `--engine flower` runs in: Flower's simulation outlives the SuperLink, and has to end with it."""
