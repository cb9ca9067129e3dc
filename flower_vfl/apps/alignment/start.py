"""The alignment job of the ServerApp, in any engine."""

from __future__ import annotations

from pathlib import Path

from flwr.serverapp import Grid

from flower_vfl.apps.alignment.client import ALIGNMENT_RESULT
from flower_vfl.apps.alignment.label import LabelSide
from flower_vfl.apps.alignment.owner import Owner
from flower_vfl.apps.alignment.progress import LoggedProgress, StageProgress
from flower_vfl.config import Config
from flower_vfl.data.sources.id_sources import IdSource, id_sources
from flower_vfl.data.store.alignment import AlignmentFile
from flower_vfl.data.store.party_names import check_party_name
from flower_vfl.errors import ConfigError, DataError
from flower_vfl.training.grids import is_simulation


def align_as_label(
    grid: Grid, config: Config, out: Path | None, progress: StageProgress | None = None
) -> AlignmentFile:
    """Align as the label party.

    Parameters
    ----------
    grid : Grid
        Flower's grid.
    config : Config
        Uses `align`; in a simulation `data`, which names every party's file; else `parties.features`.
    out : Path, optional
        In a simulation, the folder of the results, which are in a folder for each party.
    progress : Callable[[str, float], None], optional
        Receives the progress; without one it is logged every ten seconds.

    Raises
    ------
    FlowerVflError
        When the input is wrong or a party fails; then no party has a result, unless one fails at the very end, when
        others may have put theirs in place.
    """
    if is_simulation(grid):
        if out is None:
            raise ConfigError("an alignment leaves files: name a folder with `out`")
        label_party, sources = sources_of(config)
        parties = tuple(party for party in sources if party != label_party)
        source, target = sources[label_party], out / label_party / ALIGNMENT_RESULT
        fields: dict[str, str | bool] = {"simulation": True, "out": str(out)}
    else:
        label_party, parties = _deployed_parties(config)
        owner = Owner.of_this_host()
        source, target = owner.source, owner.target
        fields = {"simulation": False}
    return LabelSide(
        grid,
        source,
        target,
        label_party=label_party,
        parties=parties,
        config=config.align,
        progress=progress or LoggedProgress(label_party),
        fields=fields,
    ).run()


def sources_of(config: Config) -> tuple[str, dict[str, IdSource]]:
    """Return the label party and the IDs of all parties, from a configuration that names all files.

    Raises
    ------
    ConfigError
        When the data are not files, or the label party would be alone.
    """
    if config.data.name != "files":
        raise ConfigError(f"an alignment is of files: data.name is {config.data.name!r}, set it to 'files'")
    path = Path(config.data.path).expanduser() if config.data.path else None
    label_party, sources = id_sources(path, config.data.options)
    named = config.parties.features or [party for party in sources if party != label_party]
    for party in named:
        if party not in sources or party == label_party:
            raise ConfigError(
                f"parties.features names {party!r}, but data.options.files has no file of such a party: name it there, "
                "or leave the party out"
            )
    if not named:
        raise ConfigError("an alignment needs a feature party besides the label party: name its file in data.options")
    return label_party, {label_party: sources[label_party], **{party: sources[party] for party in named}}


def _deployed_parties(config: Config) -> tuple[str, tuple[str, ...]]:
    if not config.parties.features:
        raise ConfigError(
            "parties.features must name the feature parties, as in --run-config \"parties-features='a,b'\""
        )
    label_party = str(config.data.options.get("label_party") or "label")
    try:
        check_party_name(label_party)
    except DataError as error:
        raise ConfigError(f"data.options.label_party: {error}") from None
    if label_party in config.parties.features:
        raise ConfigError(
            f"party {label_party!r} cannot be the label party and a feature party of one alignment: leave it out of "
            "parties.features, or name another label_party in data.options"
        )
    return label_party, tuple(config.parties.features)
