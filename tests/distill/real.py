"""Public data sets in their official layouts, where a folder of them lies beside the repository."""

from pathlib import Path

import pytest

DATA = Path(__file__).parents[3] / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason=f"no public data sets in {DATA}")
