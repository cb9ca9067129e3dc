"""The label party's side of an alignment: it asks in rounds, finds the common IDs, and ends the alignment."""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
from flwr.serverapp import Grid
from numpy.typing import NDArray

from flower_vfl.alignment.group import POINT_BYTES, Key, id_blocks, read_point
from flower_vfl.alignment.hashed import SALT_BYTES, hash_ids
from flower_vfl.alignment.psi import (
    TAG_BYTES,
    check_distinct,
    is_common,
    proof_of,
    read_table,
    rearrange,
    shuffled,
    words_of,
)
from flower_vfl.alignment.table import SEED_BYTES, VALUE_BYTES, table_bytes
from flower_vfl.alignment.workers import multiply_all
from flower_vfl.apps.alignment.conversation import Conversation
from flower_vfl.apps.alignment.place import check_target, staged
from flower_vfl.apps.alignment.progress import StageProgress, counting
from flower_vfl.apps.alignment.wire import (
    AGAIN,
    AlignmentStage,
    blocks_of,
    frame,
    pieces,
    read_blocks,
    split_blocks,
)
from flower_vfl.config.schema import AlignConfig
from flower_vfl.data.sources.id_sources import IdSource
from flower_vfl.data.store.alignment import AlignmentFile
from flower_vfl.errors import DataError, PartyError, ProtocolError
from flower_vfl.protocol.frame import Frame
from flower_vfl.version import software

_log = logging.getLogger(__name__)


class _Identifiers(NamedTuple):
    """A party's identifiers of the own IDs, (N,) each: tags, which are sent, and proofs, which never are."""

    tags: list[bytes]
    proofs: list[bytes]


class LabelSide:
    """One alignment at the label party.

    Parameters
    ----------
    grid : Grid
        Flower's grid.
    source : IdSource
        The label party's IDs.
    target : Path
        File of the result.
    label_party : str
        Name of the label party.
    parties : tuple of str
        The feature parties.
    config : AlignConfig
        Method and limits.
    progress : Callable[[str, float], None]
        Receives the progress.
    fields : Mapping
        Further fields of every message: the simulation flag, and its folder.
    """

    def __init__(
        self,
        grid: Grid,
        source: IdSource,
        target: Path,
        *,
        label_party: str,
        parties: tuple[str, ...],
        config: AlignConfig,
        progress: StageProgress,
        fields: Mapping[str, str | bool],
    ) -> None:
        self._source, self._target, self._config, self._progress = source, target, config, progress
        self._label_party, self._parties = label_party, parties
        shared = {**fields, "parties": json.dumps(parties), "label_party": label_party}
        self._conversation = Conversation(grid, secrets.token_hex(16), shared, config.timeout)
        self._ids: list[str] = []
        self._found_none = False
        self._counts: dict[str, int] = {}
        self._publics: dict[str, bytes] = {}

    def run(self) -> AlignmentFile:
        """Align, and return the result.

        Raises
        ------
        DataError
            When the IDs cannot be used, or none is common.
        PartyError, ProtocolError
            When a party fails, refuses or breaks the protocol.
        """
        check_target(self._target)
        self._progress("reading IDs", 0.0)
        self._ids = self._source.read()
        with staged(self._target) as path:
            try:
                result = self._align(path)
            except BaseException:
                # The other parties must not learn what failed at one of them, only that the alignment failed.
                self._conversation.abort("no ID is common" if self._found_none else "it failed elsewhere")
                raise
        _log.info("alignment, party %s: %d common IDs -> %s", self._label_party, len(result.ids), self._target)
        return result

    def _align(self, path: Path) -> AlignmentFile:
        """Find the common IDs and write them; only then let the parties move their results to their files."""
        self._exchange_terms()
        common, names = self._compare() if self._config.method == "psi" else self._compare_hashes()
        if not common.any():
            self._found_none = True
            raise DataError(
                "no ID is common to all parties: compare how each writes its IDs (leading zeros, case, prefixes), and "
                "align again"
            )
        ids = tuple(value for value, chosen in zip(self._ids, common, strict=True) if chosen)
        result = AlignmentFile(ids, self._parties, self._label_party)
        self._send_matches(result, common, names)
        result.write(path)
        self._conversation.ask_all(self._parties, frame(AlignmentStage.FINISH, 0))
        return result

    @property
    def _piece(self) -> int:
        return self._config.message_mib * 2**20 // POINT_BYTES

    def _exchange_terms(self) -> None:
        """Send the terms to the nodes, and keep the count and the public key of each party."""
        terms = {"ids": len(self._ids), "piece": self._piece}
        proposal = frame(AlignmentStage.HELLO, 0, {**software(), "method": self._config.method, **terms})
        for party, reply in self._conversation.open(self._parties, proposal).items():
            with _errors_named(party):
                count, limit = reply.integer("ids"), self._config.max_ids
                if not 0 < count <= limit:
                    raise ProtocolError(f"a count of {count} IDs; 1 to {limit} are allowed (align.max_ids)")
                self._counts[party], self._publics[party] = count, read_blocks(reply, "key", 1, POINT_BYTES)
                read_point(self._publics[party])
        counts = ", ".join(f"{party} {count}" for party, count in self._counts.items())
        _log.info("alignment by %s: %d IDs here, %s", self._config.method, len(self._ids), counts)

    def _compare(self) -> tuple[NDArray[np.bool_], dict[str, _Identifiers]]:
        """Return a mask of the own IDs that all parties have, and each party's identifiers of the own IDs."""
        key, order = Key.fresh(), shuffled(len(self._ids))
        inverse_order = np.argsort(order)
        blinded = self._multiply("blinding IDs", key, id_blocks(self._ids), hashed=True)
        answers = self._query(rearrange(blinded, order))
        keys = blocks_of(b"".join(self._publics[party] for party in self._parties), POINT_BYTES)
        first = frame(AlignmentStage.TABLE, 0, blocks={"keys": keys})
        sizes = {party: table_bytes(count) // VALUE_BYTES for party, count in self._counts.items()}
        tables = self._collect(AlignmentStage.TABLE, first, sizes, "table", VALUE_BYTES, "waiting for tables")
        total = np.zeros((len(self._ids), 2), np.uint64)
        names = {}
        for party, (table, reply) in tables.items():
            with _errors_named(party):
                points = self._multiply(f"reading {party}'s answers", key.inverse(), answers.pop(party), hashed=False)
                words = words_of(rearrange(points, inverse_order), self._ids)
                seed = read_blocks(reply, "seed", 1, SEED_BYTES)
                total ^= read_table(self._ids, words.pads, seed, table, self._counts[party])
                names[party] = _Identifiers(words.tags, words.proofs)
        return is_common(total), names

    def _multiply(self, what: str, key: Key, blocks: bytes, *, hashed: bool) -> bytes:
        progress = counting(self._progress, what, len(blocks) // POINT_BYTES)
        return multiply_all(key, blocks, hashed=hashed, processes=self._config.processes, progress=progress)

    def _query(self, blinded: bytes) -> dict[str, bytes]:
        """Return the blinded points multiplied by each party's key."""
        found: dict[str, list[bytes]] = {party: [] for party in self._parties}
        for number, start, end in pieces(len(self._ids), self._piece):
            self._progress("waiting for answers", start / len(self._ids))
            points = blocks_of(blinded[start * POINT_BYTES : end * POINT_BYTES], POINT_BYTES)
            replies = self._conversation.ask_all(
                self._parties, frame(AlignmentStage.QUERY, number, blocks={"points": points})
            )
            for party, reply in replies.items():
                with _errors_named(party):
                    found[party].append(read_blocks(reply, "points", end - start, POINT_BYTES))
        answers = {party: b"".join(parts) for party, parts in found.items()}
        for party, answer in answers.items():
            with _errors_named(party):
                check_distinct(answer)
        return answers

    def _collect(
        self, stage: AlignmentStage, first: Frame, sizes: Mapping[str, int], name: str, width: int, what: str
    ) -> dict[str, tuple[bytes, Frame]]:
        """Return the blocks of each party, asked for in as many messages as needed, with its last answer."""
        found: dict[str, list[bytes]] = {party: [] for party in sizes}
        last: dict[str, Frame] = {}
        for number, start, _ in pieces(max(sizes.values()), self._piece):
            self._progress(what, start / max(sizes.values()))
            due = {party: size for party, size in sizes.items() if number == 0 or start < size}
            replies = self._conversation.ask_all(tuple(due), first if number == 0 else frame(stage, number))
            for party, reply in replies.items():
                blocks = min(self._piece, due[party] - start)
                with _errors_named(party):
                    found[party].append(read_blocks(reply, name, blocks, width))
                last[party] = reply
        return {party: (b"".join(parts), last[party]) for party, parts in found.items()}

    def _compare_hashes(self) -> tuple[NDArray[np.bool_], dict[str, _Identifiers]]:
        """Return the same as `_compare` for the method "hash", whose salt is drawn here."""
        salt = secrets.token_bytes(SALT_BYTES)
        first = frame(AlignmentStage.HASHES, 0, blocks={"salt": blocks_of(salt, SALT_BYTES)})
        lists = self._collect(AlignmentStage.HASHES, first, self._counts, "hashes", TAG_BYTES, "waiting for hashes")
        own = hash_ids(self._ids, salt)
        common = np.ones(len(own), bool)
        for data, _ in lists.values():
            theirs = set(split_blocks(data, TAG_BYTES))
            common &= np.fromiter((tag in theirs for tag in own), bool, len(own))
        return common, dict.fromkeys(self._parties, _Identifiers(own, own))

    def _send_matches(
        self,
        result: AlignmentFile,
        common: NDArray[np.bool_],
        names: Mapping[str, _Identifiers],
    ) -> None:
        """Send each party the tags of the common IDs, sorted; raise unless all parties find the same IDs."""
        rows, total = np.flatnonzero(common), len(result.ids)
        named = {party: b"".join(sorted(own.tags[row] for row in rows)) for party, own in names.items()}
        replies: dict[str, Frame] = {}
        for number, start, end in pieces(total, self._piece):
            self._progress("naming the common IDs", start / total)
            parts = {party: data[start * TAG_BYTES : end * TAG_BYTES] for party, data in named.items()}
            replies = self._conversation.ask(
                {
                    party: frame(AlignmentStage.MATCH, number, {"total": total}, {"tags": blocks_of(part, TAG_BYTES)})
                    for party, part in parts.items()
                }
            )
        for party, reply in replies.items():
            if reply.fields.get("proof") != proof_of((names[party].proofs[row] for row in rows), result.checksum):
                raise PartyError(f"party {party!r} found other common IDs than the label party; align again")
        self._progress("naming the common IDs", 1.0)


@contextmanager
def _errors_named(party: str) -> Iterator[None]:
    """Add the party's name to a `ProtocolError` of the block."""
    try:
        yield
    except ProtocolError as error:
        raise ProtocolError(f"party {party!r} sent what it must not: {error}; {AGAIN}") from None
