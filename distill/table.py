"""A table that is written for a terminal, in Markdown or in HTML, and how numbers are written in it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

# The width to which long texts of a terminal's table are folded, in characters.
FOLDED = 60


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        write: writes a value of this column; None is always an empty cell.
        is_text: texts are aligned left and folded in a narrow terminal; numbers are aligned right and never cut.
        is_code: Markdown shows the texts as code.
    """

    head: str
    write: Callable[[Any], str] = str
    is_text: bool = False
    is_code: bool = False


@dataclass(frozen=True)
class Table:
    """Rows of values. The first column names the rows; others that are empty in all rows are not shown.

    Attributes:
        strong: the number of the row that stands out.
    """

    columns: Sequence[Column]
    rows: Sequence[Sequence[Any]]
    caption: str = ""
    strong: int | None = None

    def texts(self) -> tuple[list[Column], list[list[str]]]:
        """The columns that are shown, and the text of every cell."""
        cells = [
            ["" if value is None else column.write(value) for column, value in zip(self.columns, row, strict=True)]
            for row in self.rows
        ]
        kept = [place for place in range(len(self.columns)) if not place or any(row[place] for row in cells)]
        return [self.columns[place] for place in kept], [[row[place] for place in kept] for row in cells]

    def print(self, console: "Console") -> None:
        """Print the table, wider than the terminal if numbers would otherwise be cut."""
        from rich import box
        from rich.table import Table as RichTable
        from rich.text import Text

        columns, rows = self.texts()
        table = RichTable(box=box.SIMPLE_HEAD, padding=(0, 1), title=self.caption or None, title_justify="left")
        needed = 2
        for place, column in enumerate(columns):
            longest = max(len(cell) for cell in (column.head, *(row[place] for row in rows)))
            needed += 3 + (min(longest, FOLDED) if column.is_text else longest)
            style = {"overflow": "fold"} if column.is_text else {"justify": "right", "no_wrap": True}
            table.add_column(Text(column.head), **style)
        for number, row in enumerate(rows):
            table.add_row(*map(Text, row), style="bold" if number == self.strong else None)
        console.width = max(console.width, needed)
        console.print(table)

    def markdown(self) -> str:
        """The table in Markdown, without its caption."""
        columns, rows = self.texts()
        lines = [[column.head for column in columns], ["---" if column.is_text else "--:" for column in columns]]
        for row in rows:
            cells = (cell.replace("|", "\\|") for cell in row)
            lines.append([f"`{cell}`" if c.is_code and cell else cell for c, cell in zip(columns, cells, strict=True)])
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)

    def html(self) -> str:
        """The table in HTML, which is scrolled if it is wider than the page."""
        columns, rows = self.texts()
        head = "".join(f'<th scope="col">{escape(column.head)}</th>' for column in columns)
        lines = []
        for number, row in enumerate(rows):
            strong = ' class="strong"' if number == self.strong else ""
            cells = "".join(
                f"<td{' class=text' if column.is_text else ''}>{escape(cell)}</td>"
                for column, cell in zip(columns[1:], row[1:], strict=True)
            )
            lines.append(f'<tr{strong}><th scope="row">{escape(row[0])}</th>{cells}</tr>')
        title = f"<caption>{escape(self.caption)}</caption>" if self.caption else ""
        body = "\n".join(lines)
        return f'<div class="wide"><table>{title}<thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table></div>'


def count(number: float) -> str:
    """A number with commas; a fraction with two digits."""
    return f"{number:,}" if isinstance(number, int) else f"{number:,.2f}"


def millions(number: float) -> str:
    """A number in millions, with four significant digits or more."""
    digits = max(0, 4 - len(str(int(number) // 10**6))) if number >= 10**6 else 4
    return f"{number / 1e6:,.{digits}f} M"


def milliseconds(microseconds: float) -> str:
    """Microseconds as milliseconds."""
    return f"{microseconds / 1000:.2f} ms"


def with_error(score: tuple[float, float | None]) -> str:
    """A score with its standard error, if that is known."""
    value, error = score
    return f"{value:.4f}" + ("" if error is None else f" ± {error:.4f}")


def difference(score: tuple[float, float]) -> str:
    """A difference of two scores with its standard error."""
    value, error = score
    return f"{value:+.4f} ± {error:.4f}"


def plural(number: int, what: str) -> str:
    """A number of things, such as "2 seeds"."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"
