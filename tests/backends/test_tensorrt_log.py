"""What is kept of the library's messages."""

from types import SimpleNamespace

import pytest

from tuner_job.backends.tensorrt.log import Log, one_line

NOISE = (
    "[checkMacros.cpp::catchCudaError::250] Error Code 1: Cuda Runtime "
    "(In catchCudaError at /_src/common/dispatch/checkMacros.cpp:250 "
    "(cudaError 35: CUDA driver version is insufficient for CUDA runtime version))"
)


class Logger:
    def log(self, severity, message):
        raise NotImplementedError


@pytest.fixture
def log():
    return Log(SimpleNamespace(ILogger=Logger))


def say(log: Log, severity: str, message: str) -> None:
    """As the library does."""
    log.logger.log(SimpleNamespace(name=severity), message)


def test_errors_come_before_warnings_and_chatter_is_dropped(log, capsys):
    say(log, "VERBOSE", "a tactic")
    say(log, "INFO", "some memory")
    assert log.text() == ""
    say(log, "WARNING", "slow")
    assert log.text() == "slow"
    say(log, "ERROR", "no")
    say(log, "INTERNAL_ERROR", "broken")
    say(log, "ERROR", "no")
    assert log.text() == "no; broken"
    assert capsys.readouterr().err == "[warning] slow\n[error] no\n[internal error] broken\n[error] no\n"


def test_clearing_begins_anew(log):
    say(log, "ERROR", "no")
    log.clear()
    assert (log.text(), log.errors()) == ("", [])


def test_a_flood_keeps_its_beginning_and_its_end(log):
    for number in range(1000):
        say(log, "ERROR", f"error {number}")
    assert log.text().startswith("error 0; error 1;")
    assert log.text().endswith("error 998; error 999")
    assert "991 more" in log.text()


def test_what_follows_every_error_without_a_gpu_is_never_the_cause(log):
    say(log, "ERROR", "IBuilder::buildSerializedNetwork: Error Code 4: API Usage Error (no output)")
    say(log, "ERROR", NOISE)
    assert "cudaError" not in log.text()
    log.clear()
    say(log, "ERROR", NOISE)
    assert "cudaError 35" in log.text(), "alone it is better than nothing"


@pytest.mark.parametrize(
    ("message", "line"),
    [
        ("two\n  lines\tand\x0bmore", "two lines and more"),
        ("ModelImporter.cpp:142: --- End node ---", "--- End node ---"),
        ("[graph.cpp::check::587] Error Code 4: Internal Error (x)", "Error Code 4: Internal Error (x)"),
        (
            "Error Code 4: API Usage Error (x has 2 dimensions In validate at /_src/optimizer/api/network.cpp:4046)",
            "Error Code 4: API Usage Error (x has 2 dimensions)",
        ),
        (
            "[context.cpp::operator()::69] Error Code 2: Internal Error (x > 0 failed. In operator() at /_src/context.cpp:69)",
            "Error Code 2: Internal Error (x > 0 failed.)",
        ),
        (f"Invalid Node - mm1\n{NOISE}", "Invalid Node - mm1"),
        (NOISE, "Error Code 1: Cuda Runtime (cudaError 35: CUDA driver version is insufficient for CUDA runtime version))"),
        ("In node 3: no", "In node 3: no"),
    ],
)
def test_a_message_loses_its_line_breaks_and_source_locations(message, line):
    assert one_line(message) == line


def test_a_message_is_bounded():
    assert len(one_line("x" * 10_000)) == 400


@pytest.mark.parametrize(
    ("message", "short"),
    [
        ("Error Code 2: OutOfMemory (Requested size was 9 bytes.)", True),
        ("Requested amount of GPU memory (1 bytes) could not be allocated.", True),
        ("Cuda Runtime (out of memory)", True),
        ("no tactics to implement the operation within workspace limit", False),
    ],
)
def test_want_of_memory_is_told_from_other_failures(log, message, short):
    say(log, "WARNING", "out of memory for one tactic, which is skipped")
    say(log, "ERROR", message)
    assert log.short_of_memory == short
