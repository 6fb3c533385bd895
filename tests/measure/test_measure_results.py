"""What the pages say of the H200s is what the result files say."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest

from bench import real
from bench.h200 import tables


@pytest.mark.parametrize("page", tables.PAGES, ids=lambda page: page.name)
def test_the_tables_of_a_page_come_from_the_files(page: Path) -> None:
    assert "<!-- table " in page.read_text()
    assert tables.filled(page.read_text()) == page.read_text()


def test_every_table_has_a_place_and_a_wrong_one_is_written_anew() -> None:
    text = tables.PAGES[0].read_text()
    for name in tables.TABLES:
        assert f"<!-- table {name}: by" in text
    forged = text.replace("| 22 of 59 | 0 |", "| 22 of 59 | 1 |")
    assert forged != text
    assert tables.filled(forged) == text


def test_the_page_of_the_third_series_comes_from_its_sessions() -> None:
    output = real.RESULTS / "h200" / "aa-real-minilm-fp16-gpu"
    series = real.Series.read(output.with_name(f"{output.name}.json.gz"))
    assert series is not None
    options = Namespace(job=tables.ROOT / "bench" / "h200" / "minilm-fp16.yaml", device="GPU")
    written = output.with_name(f"{output.name}.md").read_text()
    assert (
        real.markdown(series, options).splitlines()[3:] == written.splitlines()[3:]
    )  # line 3 names the job from where it was run
