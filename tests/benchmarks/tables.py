"""Reads the tables that benchmarks print."""


def cells_of(printed: str) -> dict[str, list[str]]:
    """The cells of each line by that in its first column."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in printed.splitlines() if "|" in line]
    return {name: cells for name, *cells in rows if set(name) != {"-"}}
