"""A feature party's side of an alignment; its state is on its own disk: a new process may handle each message."""

from __future__ import annotations

import json
import logging
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from flower_vfl.alignment.group import POINT_BYTES, Key, id_blocks
from flower_vfl.alignment.hashed import SALT_BYTES, hash_ids
from flower_vfl.alignment.psi import (
    TAG_BYTES,
    check_distinct,
    make_table,
    matched_rows,
    pair_key,
    proof_of,
    words_of,
)
from flower_vfl.alignment.table import SEED_BYTES, VALUE_BYTES, table_bytes
from flower_vfl.alignment.workers import multiply_all
from flower_vfl.apps.alignment.place import check_target, discard, new_state, state_folder
from flower_vfl.apps.alignment.progress import LoggedProgress, counting
from flower_vfl.apps.alignment.wire import (
    AGAIN,
    AlignmentStage,
    blocks_of,
    frame,
    message_count,
    read_blocks,
    split_blocks,
)
from flower_vfl.data.sources.id_sources import IdSource
from flower_vfl.data.store import layout
from flower_vfl.data.store.alignment import AlignmentFile
from flower_vfl.errors import ProtocolError
from flower_vfl.files import write_private, writing_to
from flower_vfl.protocol.frame import Frame

_log = logging.getLogger(__name__)

_STATE, _IDS, _RESULT = "state.json", "ids.parquet", "alignment.parquet"
_TAGS, _PROOFS, _TABLE, _MATCHES = "tags", "proofs", "table", "matches"
_KEY, _PAIR_KEY = "key", "pair-key"


@dataclass(frozen=True)
class Terms:
    """The terms of an alignment, known to both sides.

    Parameters
    ----------
    session : str
        Id of the alignment.
    party, label_party : str
        The feature party, and the label party.
    parties : tuple of str
        All feature parties.
    method : str
        "psi" or "hash".
    label_ids : int
        Number of IDs of the label party.
    piece : int
        Largest number of blocks in a message.
    """

    session: str
    party: str
    label_party: str
    parties: tuple[str, ...]
    method: str
    label_ids: int
    piece: int


class FeatureSide:
    """One alignment at a feature party, from one message to the next.

    The state is a folder beside the file of the result, open to its owner only; it holds this run's secret keys and is
    removed with them when the alignment ends, well or not, and when another one starts.

    Parameters
    ----------
    target : Path
        File of the result.
    terms : Terms
        The terms of the first message.
    ids : int
        Number of this party's IDs.
    stage : AlignmentStage
        The last stage that was answered.
    step : int
        Number of its last message.
    processes : int
        Number of processes for curve arithmetic; 0 for one a core.
    """

    def __init__(
        self, target: Path, terms: Terms, ids: int, stage: AlignmentStage, step: int, *, processes: int
    ) -> None:
        self.terms = terms
        self._target, self._folder = target, state_folder(target)
        self._ids, self._stage, self._step, self._processes = ids, stage, step, processes
        self._progress = LoggedProgress(terms.party)

    @classmethod
    def begin(cls, source: IdSource, target: Path, terms: Terms, *, processes: int = 0) -> tuple[Self, Frame]:
        """Write the party's IDs and new keys to the state, and answer the first message.

        Raises
        ------
        OutputExistsError
            When there is a result already.
        DataError
            When the IDs cannot be used, or nothing can be written at `target`.
        """
        check_target(target)
        ids = source.read()
        folder = new_state(target)
        side = cls(target, terms, len(ids), AlignmentStage.HELLO, 0, processes=processes)
        with writing_to(folder):
            layout.write_ids(folder / _IDS, ids)
            for name in (_KEY, _PAIR_KEY):
                write_private(folder / name, Key.fresh().to_bytes())
            side._save()
        _log.info(
            "alignment by %s, party %s: %d IDs here, %d at %s",
            *(terms.method, terms.party, len(ids), terms.label_ids, terms.label_party),
        )
        public = blocks_of(side._key(_PAIR_KEY).public(), POINT_BYTES)
        return side, frame(AlignmentStage.HELLO, 0, {"party": terms.party, "ids": len(ids)}, {"key": public})

    @classmethod
    def resume(cls, target: Path, session: str, *, processes: int = 0) -> Self:
        """Return the side with the state that the previous message left.

        Raises
        ------
        ProtocolError
            When there is no state of this session.
        """
        state = _read_state(target)
        if state is None:
            raise ProtocolError("a message of an alignment came that was not begun here; align again")
        terms, ids, stage, step = state
        if terms.session != session:
            raise ProtocolError("a message of another alignment came than the one that was begun here; align again")
        return cls(target, terms, ids, stage, step, processes=processes)

    def answer(self, stage: AlignmentStage, message: Frame) -> Frame:
        """Answer a message, which must be the next one.

        Raises
        ------
        ProtocolError
            When it is out of order or malformed.
        StorageError
            When the disk of the state is full.
        """
        handlers = {
            AlignmentStage.QUERY: self._query,
            AlignmentStage.TABLE: self._table,
            AlignmentStage.HASHES: self._hashes,
            AlignmentStage.MATCH: self._match,
            AlignmentStage.FINISH: self._finish,
        }
        try:
            self._check_order(stage, message.step)
            with writing_to(self._folder):
                reply = handlers[stage](message)
                if stage is not AlignmentStage.FINISH:
                    self._stage, self._step = stage, message.step
                    self._save()
        except ProtocolError as error:
            raise ProtocolError(f"the label party sent what it must not: {error}; {AGAIN}") from None
        return reply

    def _check_order(self, stage: AlignmentStage, step: int) -> None:
        """Refuse a message out of order, or a second time: the label party tries no more IDs than it announced."""
        psi = self.terms.method == "psi"
        compare = [AlignmentStage.QUERY, AlignmentStage.TABLE] if psi else [AlignmentStage.HASHES]
        order = [AlignmentStage.HELLO, *compare, AlignmentStage.MATCH, AlignmentStage.FINISH]
        following = order[min(order.index(self._stage) + 1, len(order) - 1)]
        due = (stage, self._step + 1) if stage is self._stage else (following, 0)
        # The label party chooses the number of messages of matches; `_finish` checks that all matches were named.
        complete = self._stage in (stage, AlignmentStage.MATCH) or self._step + 1 == self._messages(self._stage)
        if (stage, step) != due or not complete or step >= self._messages(stage):
            raise ProtocolError(f"message {step} of the stage {stage} of an alignment came out of turn")

    def _messages(self, stage: AlignmentStage) -> int:
        """Return the number of messages of a stage."""
        blocks = {
            AlignmentStage.QUERY: self.terms.label_ids,
            AlignmentStage.TABLE: table_bytes(self._ids) // VALUE_BYTES,
            AlignmentStage.HASHES: self._ids,
            AlignmentStage.MATCH: min(self._ids, self.terms.label_ids),
        }
        return message_count(blocks.get(stage, 1), self.terms.piece)

    def _query(self, message: Frame) -> Frame:
        start = message.step * self.terms.piece
        count = min(self.terms.piece, self.terms.label_ids - start)
        points = read_blocks(message, "points", count, POINT_BYTES)
        check_distinct(points)
        progress = counting(self._progress, "answering for the label party's IDs", self.terms.label_ids, done=start)
        found = multiply_all(self._key(_KEY), points, hashed=False, processes=self._processes, progress=progress)
        return frame(AlignmentStage.QUERY, message.step, {}, {"points": blocks_of(found, POINT_BYTES)})

    def _table(self, message: Frame) -> Frame:
        path = self._folder / _TABLE
        if message.step == 0:
            keys = read_blocks(message, "keys", len(self.terms.parties), POINT_BYTES)
            ids = self._read_ids()
            progress = counting(self._progress, "hashing own IDs", len(ids))
            points = multiply_all(
                self._key(_KEY), id_blocks(ids), hashed=True, processes=self._processes, progress=progress
            )
            words = words_of(points, ids)
            seed, table = make_table(ids, words.pads, self._pair_keys(keys))
            (self._folder / _TAGS).write_bytes(b"".join(words.tags))
            (self._folder / _PROOFS).write_bytes(b"".join(words.proofs))
            path.write_bytes(seed + table)
        content = path.read_bytes()
        piece = _piece(content[SEED_BYTES:], message.step, self.terms.piece, VALUE_BYTES)
        blocks = {"seed": blocks_of(content[:SEED_BYTES], SEED_BYTES), "table": blocks_of(piece, VALUE_BYTES)}
        return frame(AlignmentStage.TABLE, message.step, blocks=blocks)

    def _pair_keys(self, keys: bytes) -> list[bytes]:
        """Return the key shared with each other feature party; the label party, the relay, cannot compute them."""
        own = self._key(_PAIR_KEY)
        publics = dict(zip(self.terms.parties, split_blocks(keys, POINT_BYTES), strict=True))
        if publics.pop(self.terms.party) != own.public():
            raise ProtocolError("the label party passes on another key for this party than the one that it got")
        return [
            pair_key(own, public, self.terms.session, *sorted((self.terms.party, other)))
            for other, public in publics.items()
        ]

    def _hashes(self, message: Frame) -> Frame:
        path = self._folder / _TAGS
        if message.step == 0:
            path.write_bytes(b"".join(hash_ids(self._read_ids(), read_blocks(message, "salt", 1, SALT_BYTES))))
            shutil.copyfile(path, self._folder / _PROOFS)  # this method hides nothing from a party that knows the salt
        tags = b"".join(sorted(split_blocks(path.read_bytes(), TAG_BYTES)))
        piece = _piece(tags, message.step, self.terms.piece, TAG_BYTES)
        return frame(AlignmentStage.HASHES, message.step, {}, {"hashes": blocks_of(piece, TAG_BYTES)})

    def _match(self, message: Frame) -> Frame:
        """Store the tags of the common IDs; after the last message, write the result to the state folder."""
        total = message.integer("total")
        start = message.step * self.terms.piece
        if not 0 < total <= min(self._ids, self.terms.label_ids) or start >= total:
            raise ProtocolError(f"{total} common IDs cannot be, or not in message {message.step}")
        count = min(self.terms.piece, total - start)
        with (self._folder / _MATCHES).open("wb" if message.step == 0 else "ab") as file:
            file.write(read_blocks(message, "tags", count, TAG_BYTES))
        if start + count < total:
            return frame(AlignmentStage.MATCH, message.step)
        matches = (self._folder / _MATCHES).read_bytes()
        if len(matches) != total * TAG_BYTES:
            raise ProtocolError("the label party changed how many IDs are common")
        ids = self._read_ids()
        tags, proofs = (split_blocks((self._folder / name).read_bytes(), TAG_BYTES) for name in (_TAGS, _PROOFS))
        rows = sorted(matched_rows(tags, matches))  # own IDs are sorted, so the common ones are
        result = AlignmentFile(tuple(ids[row] for row in rows), self.terms.parties, self.terms.label_party)
        result.write(self._folder / _RESULT)
        return frame(
            AlignmentStage.MATCH, message.step, {"proof": proof_of((proofs[row] for row in rows), result.checksum)}
        )

    def _finish(self, message: Frame) -> Frame:
        """Move the result to its file, and remove the state."""
        path = self._folder / _RESULT
        if not path.is_file():
            raise ProtocolError("an alignment ended before the common IDs were named")
        check_target(self._target)
        rows = len(AlignmentFile.read(path).ids)
        os.replace(path, self._target)
        discard(self._target)
        _log.info("alignment, party %s: %d common IDs -> %s", self.terms.party, rows, self._target)
        return frame(AlignmentStage.FINISH, message.step)

    def _key(self, name: str) -> Key:
        return Key.from_bytes((self._folder / name).read_bytes())

    def _read_ids(self) -> list[str]:
        return [str(value) for value in layout.read_id_column(self._folder / _IDS, self._ids).to_pylist()]

    def _save(self) -> None:
        state = {"terms": asdict(self.terms), "ids": self._ids, "stage": str(self._stage), "step": self._step}
        layout.write_json(self._folder / _STATE, state)


def discard_session(target: Path, session: str) -> None:
    """Remove the state of an alignment with its keys, unless it is another session's: a late message ends no other."""
    state = _read_state(target)
    if state is None or state[0].session == session:
        discard(target)


def _read_state(target: Path) -> tuple[Terms, int, AlignmentStage, int] | None:
    """Return terms, number of IDs, stage and step of an alignment under way; None where there is no readable state."""
    try:
        state = json.loads((state_folder(target) / _STATE).read_text(encoding="utf8"))
        terms = Terms(**{**state["terms"], "parties": tuple(state["terms"]["parties"])})
        return terms, int(state["ids"]), AlignmentStage(state["stage"]), int(state["step"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _piece(data: bytes, step: int, piece: int, width: int) -> bytes:
    return data[step * piece * width : (step + 1) * piece * width]
