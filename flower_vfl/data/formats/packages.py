"""Data files of installed Python packages, found without importing a package, which may be old or broken."""

from __future__ import annotations

import importlib.util
from pathlib import Path


def packaged_folder(package: str, folder: str, *files: str) -> Path | None:
    """Return the folder inside an installed package that holds these files; None where there is none.

    Parameters
    ----------
    package : str
        Import name, not the name of the distribution.
    folder : str
        Path inside the package.
    *files : str
        Names of files that must be there.
    """
    spec = importlib.util.find_spec(package)
    places = [] if spec is None else list(spec.submodule_search_locations or ())
    found = (Path(place) / folder for place in places)
    return next((path for path in found if all((path / name).is_file() for name in files)), None)
