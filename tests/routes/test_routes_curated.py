import re
from dataclasses import replace

import pytest

from tuner_job.routes.curated import CURATED, curated_values
from tuner_job.routes.knobs import KnobList


def test_every_unbounded_knob_of_the_real_list_has_values_to_try_and_no_other_has(real_knobs: KnobList) -> None:
    unbounded = {knob.name for knob in real_knobs.knobs if knob.values is None}
    assert len(unbounded) == 14
    assert set(CURATED) == unbounded
    for knob in real_knobs.knobs:
        assert bool(curated_values(knob)) == (knob.name in unbounded)


@pytest.mark.parametrize("name", CURATED)
def test_the_knob_itself_accepts_them_and_none_is_its_default(real_knobs: KnobList, name) -> None:
    knob = real_knobs.find(name)
    assert curated_values(knob) == tuple(value for value in CURATED[name].values if value != knob.default)
    assert len(set(CURATED[name].values)) == len(CURATED[name].values)


@pytest.mark.parametrize("name", CURATED)
def test_they_are_the_values_that_the_help_text_names(real_knobs: KnobList, name) -> None:
    """All of them and no other, where the table says so."""
    text = real_knobs.find(name).help
    named = set(re.findall(r"(?<!\w)(\d+)(?=\+?:| or )|(?<=or )(\d+)(?=:)", text))
    numbers = {number for pair in named for number in pair if number}
    offered = {real_knobs.find(name).default, *CURATED[name].values}
    if CURATED[name].from_help:
        assert offered == numbers
    else:
        assert numbers <= {"0"}
    words = CURATED[name].reason.split(" The text")[0]
    assert words in text, "the reason quotes the help text"


def test_a_version_with_another_domain_takes_only_what_it_accepts(real_knobs: KnobList) -> None:
    knob = real_knobs.find("-peep:max")
    assert curated_values(replace(knob, domain="[2|3|...]")) == ("2",)
    assert curated_values(replace(knob, default="2")) == ("1",)
    assert curated_values(replace(knob, values=("0", "1"))) == (), "a bounded knob lists its own"
