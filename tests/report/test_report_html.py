import base64
import hashlib
import os
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from report_runs import Run, explored, knob, losses, proven

from tuner_job.api.base import InputError
from tuner_job.api.measurement import Candidate
from tuner_job.api.messages import trial_id
from tuner_job.api.outcome import Outcome
from tuner_job.report.data import page_of
from tuner_job.report.html import render, write_report

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'><svg onload=alert(3)>{{ 7*7 }}$x^$\x00\x1b[31m\u202e"


class Parsed(HTMLParser):
    """What a browser would make of the page: tags with attributes, and text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.text: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attributes}))

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(scope="module")
def html() -> str:
    return render(page_of(proven().reader))


@pytest.fixture(scope="module")
def page(html: str) -> Parsed:
    return Parsed(html)


def test_the_page_needs_nothing_but_itself(html: str, page: Parsed):
    assert not {"link", "img", "iframe", "object", "embed", "base", "form", "audio", "video", "image"} & {t for t, _ in page.tags}
    for tag, attributes in page.tags:
        assert not {"src", "srcset", "action", "ping", "background", "poster"} & set(attributes), tag
        for name in ("href", "xlink:href"):
            assert attributes.get(name, "#").startswith("#"), (tag, attributes)
        assert "http-equiv" not in attributes or attributes["http-equiv"] == "Content-Security-Policy"
    assert "@import" not in html
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", html))
    namespaces = r'xmlns(:xlink)?="http://www\.w3\.org/(2000/svg|1999/xlink)"'
    assert not re.search(r"https?://", re.sub(namespaces, "", html))


def test_a_policy_lets_nothing_load_and_only_the_pages_own_script_run(html: str, page: Parsed):
    (policy,) = [meta["content"] for meta in page.all("meta") if meta.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none';")
    script = re.search(r"<script>(.*)</script>", html, re.DOTALL)
    assert script is not None
    expected = base64.b64encode(hashlib.sha256(script.group(1).encode()).digest()).decode()
    assert f"script-src 'sha256-{expected}'" in policy


def test_every_plot_is_an_image_with_a_text_for_who_cannot_see_it(page: Parsed):
    drawings = page.all("svg")
    assert len(drawings) == 7
    assert all(svg["role"] == "img" and len(svg["aria-label"]) > 40 and svg["viewbox"] for svg in drawings)


def test_ids_are_unique_and_every_reference_has_its_target(page: Parsed):
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    used = [attributes.get(name, "") for _, attributes in page.tags for name in ("href", "xlink:href")]
    used += [f"#{target}" for _, a in page.tags for v in a.values() for target in re.findall(r"url\(#([^)]+)\)", v)]
    assert {target[1:] for target in used if target} <= set(ids)


def test_colours_are_the_pages_so_that_light_and_dark_both_work(html: str):
    drawn = "".join(re.findall(r"<svg.*?</svg>", html, re.DOTALL))
    assert "var(--blue)" in drawn
    assert not re.search(r"(fill|stroke): #", drawn)
    assert "prefers-color-scheme: dark" in html
    assert "@media print" in html


def test_tables_are_real_tables_that_work_without_scripts(page: Parsed):
    assert len(page.all("table")) >= 5
    assert all(head.get("scope") == "col" for head in page.all("th"))
    text = " ".join(page.text)
    for k in range(8):
        assert f"-knob{k}=on" in text
        assert trial_id(1, k) in text


def stages() -> dict[str, Run]:
    return {
        "Discovering": Run(),
        "Discovered, nothing planned yet": Run().discover(),
        "Exploring: 0 trials finished": Run().discover().plan(1, [knob(0)]),
        "Exploring: 8 trials finished": explored(),
        "Proving the pick": Run().discover().final_plan(1, knob(0)),
        "No significant win": Run().discover().final_plan(1, knob(0)).verdict(knob(0), significant=False),
        "Nothing beat the default": Run().discover().final_plan(1, None).verdict(None, significant=False, reason="NoCandidate"),
    }


@pytest.mark.parametrize("headline", stages())
def test_there_is_a_page_at_every_stage(headline: str):
    parsed = Parsed(render(page_of(stages()[headline].reader)))
    assert any(headline in text for text in parsed.text)
    shown = len(parsed.all("svg"))
    missing = sum(attributes.get("class") == "missing" for attributes in parsed.all("p"))
    assert shown + missing >= 7


def test_a_run_in_which_everything_failed_has_a_page():
    run = Run().discover().plan(1, [knob(0), knob(1)])
    run.result(trial_id(1, 0), knob(0), outcome=Outcome.HUNG, losses=None, reason="no end after 600 s", phase="measure")
    run.result(trial_id(1, 1), knob(1), outcome=Outcome.CRASHED, losses=None, reason="SIGSEGV", log="boom", convicted=True)
    text = " ".join(Parsed(render(page_of(run.reader))).text)
    assert "2 trials have finished, but none of them is feasible with a timing." in text
    assert "no end after 600 s" in text
    assert "boom" in text
    assert "could not be drawn" not in text


def test_foreign_text_stays_text():
    run = Run(name=HOSTILE, target=HOSTILE, model=HOSTILE).discover(warnings=(HOSTILE,))
    candidate = Candidate(variant=HOSTILE, route=HOSTILE, settings={HOSTILE: HOSTILE})
    run.plan(1, [candidate, candidate], reason=HOSTILE)
    run.result(trial_id(1, 0), candidate, -0.1, losses=losses(output=HOSTILE, sample=HOSTILE), worker=HOSTILE)
    run.result(
        trial_id(1, 1),
        candidate,
        outcome=Outcome.CRASHED,
        reason=HOSTILE,
        log=HOSTILE,
        phase=HOSTILE,
        losses=None,
        worker=HOSTILE,
    )
    run.seal(1, [trial_id(1, 0), trial_id(1, 1)]).final_plan(2, candidate)
    run.verdict(candidate, message=HOSTILE, method={HOSTILE: HOSTILE, "power": HOSTILE})
    html = render(page_of(run.reader))
    parsed = Parsed(html)
    assert html.count("<script>") == 1
    assert len(parsed.all("script")) == 1
    assert not parsed.all("img")
    assert not [name for _, attributes in parsed.tags for name in attributes if name.startswith("on")]
    assert not re.search("[\x00\x1b\u202e]", html)
    assert "49" not in re.findall(r"\{\{.*?\}\}|49\$", html)
    assert any("alert(2)" in text for text in parsed.text)
    assert "could not be drawn" not in html


def test_five_hundred_trials_are_less_than_two_megabytes(tmp_path: Path):
    run = Run().discover()
    route = " ".join(f"-some_family:version_2:knob_number_{j}=value" for j in range(8))
    candidates = [Candidate(route=f"{route} -k={k}") for k in range(500)]
    run.plan(1, candidates, reason="screening in groups of 8: " + route)
    for k, candidate in enumerate(candidates):
        if k % 5:
            run.result(trial_id(1, k), candidate, 1e-4 * (k % 300), losses=losses(1e-7 * (k + 1)))
        else:
            reason = f"builder said no to {'abcdefghij'[k % 10] * (k // 10)}"
            run.result(trial_id(1, k), candidate, outcome=Outcome.REFUSED, losses=None, reason=reason, log="x" * 4000)
    path = write_report(run.reader, tmp_path / "page.html")
    assert path.stat().st_size < 2_000_000


def test_folders_are_made_and_nothing_but_the_page_is_left(tmp_path: Path):
    path = write_report(Run().reader, tmp_path / "deep" / "er" / "page.html")
    assert [file.name for file in path.parent.iterdir()] == ["page.html"]


def test_a_place_that_cannot_be_written_is_one_clear_error_and_leaves_nothing(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"page\.html: the report cannot be written: .*; choose another place with -o"):
        write_report(Run().reader, tmp_path / "file" / "page.html")
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(InputError):
        write_report(Run().reader, folder)
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]


def test_plots_say_what_they_show(page: Parsed):
    said = " ".join(svg["aria-label"] for svg in page.all("svg"))
    assert "best explored is -knob0=on" in said
    assert "8 trials finished, 5 feasible" in said
    assert "Largest saving: -knob0=on" in said
    assert "faster one in 100% of all pairs" in said
