"""Vectorised parser of line protocol: reads many lines at a time into columns.

Nearly all lines have no quoted string. Such a line ends in two parts without blanks: its fields and its time. The text
before them, measurement and tags, is the same in many lines, so each distinct text is parsed once. The fields of a
measurement mostly have the same order, so they are split at their commas and converted as columns. All other lines are
parsed one by one by `testbed.measure.line_protocol`, which also reports errors.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

import polars as pl

from testbed.measure.line_protocol import LineError, Point, parse_head, parse_line
from testbed.measure.schema import MEASUREMENTS
from testbed.measure.tables import TABLES, tag_kind

TIME = pl.Datetime("ns", "UTC")
DTYPES: dict[str, type[pl.DataType] | pl.DataType] = {
    "time": TIME, "float": pl.Float64, "int": pl.Int64, "str": pl.String, "bool": pl.Boolean,
}  # fmt: skip
_OF_TYPE: dict[type, type[pl.DataType]] = {float: pl.Float64, int: pl.Int64, str: pl.String, bool: pl.Boolean}
_WHOLE = re.compile(r"-?[0-9]{1,18}")
_MOST_SHAPES = 8  # most different orders of a measurement's fields that are read as columns
_ROW, _REST, _HEAD, _LIKE = "\0row", "\0rest", "\0head", "\0like"  # impossible names in line protocol


def table_dtypes(name: str) -> dict[str, type[pl.DataType] | pl.DataType]:
    """Return the columns and types of a table of the schema; empty for an unknown table."""
    return {column.name: DTYPES[column.kind] for column in TABLES[name].columns} if name in TABLES else {}


@dataclass(slots=True)
class LinesReader:
    """Reads blocks of lines into frames; a field keeps the type that the schema, or its first point, gave it.

    `wanted` are the measurements to read, None for all.
    """

    wanted: Collection[str] | None = None
    _types: dict[tuple[str, str], type] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, measurement in MEASUREMENTS.items():
            self._types.update({(name, one.name): one.kind for one in measurement.fields})

    def read(self, text: str, fail: Callable[[int, str], Exception]) -> dict[str, pl.DataFrame]:
        """Return one frame per measurement in whole lines, with rows in the order of the lines.

        Raises `fail(row, reason)` for the first line, counted from 0, that is no valid point, or contradicts the types
        of earlier points.
        """
        lines = pl.Series("line", [text], dtype=pl.String).str.split("\n").explode()
        frames, leftover = self._read_regular(lines)
        for name, frame in self._read_singly(lines, sorted(leftover), fail).items():
            frames.setdefault(name, []).append(frame)
        return {name: _in_order(parts) for name, parts in frames.items()}

    def _read_regular(self, lines: pl.Series) -> tuple[dict[str, list[pl.DataFrame]], list[int]]:
        """Return frames of the lines that are read as columns, and the row numbers of all other lines."""
        words = pl.col("words")
        cut = (
            pl.DataFrame({"line": lines})
            .with_row_index(_ROW)
            .with_columns(words=pl.col("line").str.split(" "))
            .select(
                _ROW,
                words.list.head(words.list.len().cast(pl.Int64) - 2).list.join(" ").alias(_HEAD),
                words.list.get(-2, null_on_oob=True).alias(_REST),
                words.list.get(-1, null_on_oob=True).cast(pl.Int64, strict=False).cast(TIME).alias("time"),
                quoted=pl.col("line").str.contains('"', literal=True),
            )
        )
        is_regular = ~pl.col("quoted") & pl.col("time").is_not_null() & ~pl.col(_REST).str.contains("\\", literal=True)
        marked = cut.with_columns(regular=is_regular.fill_null(value=False))
        leftover = marked.filter(~pl.col("regular"))[_ROW].to_list()
        regular = marked.filter("regular").select(_ROW, "time", _HEAD, _REST)
        frames: dict[str, list[pl.DataFrame]] = {}
        for name, heads in self._parse_heads(regular[_HEAD].unique().to_list()).items():
            found = regular.join(heads, on=_HEAD, how="inner", maintain_order="left").drop(_HEAD)
            if name is None:
                leftover += found[_ROW].to_list()
            elif self.wanted is None or name in self.wanted:
                frames[name], rows = self._convert(name, found)
                leftover += rows
        return frames, leftover

    @staticmethod
    def _parse_heads(texts: list[str]) -> dict[str | None, pl.DataFrame]:
        """Return the distinct heads of each measurement, with their tags as columns; invalid heads under None."""
        parsed: dict[str | None, list[dict[str, object]]] = {}
        for text in texts:
            try:
                name, tags = parse_head(text)
                row = {_HEAD: text, **_tag_values(name, tags)}
            except LineError:
                parsed.setdefault(None, []).append({_HEAD: text})
            else:
                parsed.setdefault(name, []).append(row)
        made: dict[str | None, pl.DataFrame] = {}
        for measurement, rows in parsed.items():
            names = dict.fromkeys(key for row in rows for key in row)
            schema = {key: pl.Int64 if tag_kind(key) == "int" else pl.String for key in names}
            made[measurement] = pl.DataFrame(rows, schema=schema, orient="row")
        return made

    def _convert(self, name: str, points: pl.DataFrame) -> tuple[list[pl.DataFrame], list[int]]:
        """Return frames with the fields as columns, one per order of fields, and the rows that do not fit."""
        done: list[pl.DataFrame] = []
        leftover: list[int] = []
        for _ in range(_MOST_SHAPES):
            if points.is_empty():
                return done, leftover
            pieces = str(points[_REST][0]).split(",")
            names = [piece.partition("=")[0] for piece in pieces]
            if len({*names, *points.columns}) < len(names) + points.width:
                break
            samples = dict(zip(names, (piece.partition("=")[2] for piece in pieces), strict=True))
            cut = pl.col(_REST).str.splitn(",", len(names)).struct.rename_fields(names)
            is_like = pl.all_horizontal(pl.col(key).str.starts_with(f"{key}=") for key in names)
            values = [
                _converted(pl.col(key).str.slice(len(key) + 1), self._type_of(name, key, samples[key])).alias(key)
                for key in names
            ]
            frame = (
                points.with_columns(cut)
                .unnest(_REST)
                .with_columns(*values, is_like.fill_null(value=False).alias(_LIKE))
            )
            alike = frame[_LIKE]
            is_read = frame.select(pl.all_horizontal(_LIKE, pl.col(names).is_not_null())).to_series()
            frame = frame.drop(_LIKE)
            if is_read.all():  # the usual case, which avoids a copy
                return [*done, frame], leftover
            leftover += frame.filter(alike & ~is_read)[_ROW].to_list()
            done.append(frame.filter(is_read))
            points = points.filter(~alike)
        return done, leftover + points[_ROW].to_list()

    def _type_of(self, measurement: str, name: str, sample: str) -> type | None:
        """Return the type of a field, derived from a sample value if it is not known yet; None for an invalid value."""
        known = self._types.get((measurement, name))
        if known is None:
            try:
                known = type(parse_line(f"m f={sample} 0").fields["f"])
            except LineError:
                return None
            self._types[measurement, name] = known
        return known

    def _read_singly(
        self, lines: pl.Series, rows: list[int], fail: Callable[[int, str], Exception]
    ) -> dict[str, pl.DataFrame]:
        """Parse the lines of these rows one by one."""
        found: dict[str, list[dict[str, object]]] = {}
        columns: dict[str, dict[str, type[pl.DataType]]] = {}
        for row, line in zip(rows, lines.gather(rows).to_list(), strict=True):
            try:
                point = parse_line(line)
                record = self._record(point)
            except LineError as error:
                raise fail(row, str(error)) from error
            if self.wanted is not None and point.measurement not in self.wanted:
                continue
            found.setdefault(point.measurement, []).append({_ROW: row, "time": point.time_ns, **record})
            types = columns.setdefault(point.measurement, {})
            for key, value in record.items():
                types.setdefault(key, _OF_TYPE[type(value)])
        return {
            name: pl.DataFrame(
                records, schema={_ROW: pl.UInt32, "time": pl.Int64, **columns[name]}, orient="row"
            ).with_columns(pl.col("time").cast(TIME))
            for name, records in found.items()
        }  # fmt: skip

    def _record(self, point: Point) -> dict[str, object]:
        """Return tags and fields of a point as columns; raises `LineError` if a type differs from earlier points."""
        for name, value in point.fields.items():
            expected = self._types.setdefault((point.measurement, name), type(value))
            if type(value) is not expected:
                found = type(value).__name__
                raise LineError(f"{point.measurement}.{name} = {value!r}: expected {expected.__name__}, found {found}")
        tags = _tag_values(point.measurement, point.tags)
        if twice := {"time", *tags} & point.fields.keys():
            raise LineError(f"{point.measurement}.{min(twice)}: expected another name than a tag's or that of the time")
        return {**tags, **point.fields}


def _tag_values(measurement: str, tags: Mapping[str, str]) -> dict[str, object]:
    """Return the tags, with numeric tags as integers."""
    values: dict[str, object] = dict(tags)
    for name, text in tags.items():
        if tag_kind(name) == "int":
            if not _WHOLE.fullmatch(text):
                raise LineError(f"{measurement}: tag {name} = {text!r}: expected a whole number")
            values[name] = int(text)
    if "time" in tags:
        raise LineError(f"{measurement}: tag time: expected another name than that of the time")
    return values


def _converted(text: pl.Expr, kind: type | None) -> pl.Expr:
    """Return texts as values of one kind, null for invalid texts."""
    if kind is float:
        number = text.cast(pl.Float64, strict=False)
        return pl.when(number.is_finite()).then(number)
    if kind is int:
        return pl.when(text.str.ends_with("i")).then(text.str.strip_suffix("i").cast(pl.Int64, strict=False))
    if kind is bool:
        return pl.when(text == "true").then(pl.lit(value=True)).when(text == "false").then(pl.lit(value=False))
    return pl.lit(None, dtype=pl.String)


def _in_order(parts: list[pl.DataFrame]) -> pl.DataFrame:
    """Return the parts as one frame, in the order of their lines."""
    whole = pl.concat(parts, how="diagonal") if len(parts) > 1 else parts[0]
    return (whole.sort(_ROW) if len(parts) > 1 else whole).drop(_ROW)
