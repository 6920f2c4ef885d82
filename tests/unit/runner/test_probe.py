"""What a tiny build saw, compared with what steps are promised."""

from dataclasses import replace

import pytest

from pierhead.runner.domain.probe import (
    MEMORY_BYTES,
    STEP_BYTES,
    Around,
    built,
    failed,
    isolated,
    lacks,
)

SAW = """\
STEP 3/3: RUN ["/bin/sh", "/look"]
saw pid 1
saw processes /proc/1
saw link 17
saw route eth0
saw memory 16777216
"""
AROUND = Around(
    link=17,
    reached=False,
    memory_bytes=MEMORY_BYTES,
    processes=4096,
    processes_wanted=4096,
    steps_peak_bytes=STEP_BYTES + 1,
)


def test_a_machine_that_keeps_every_promise_lacks_nothing() -> None:
    checks = (built(SAW), *isolated(SAW, AROUND))

    assert [check.what for check in checks] == ["build", "processes", "network", "limits"]
    assert lacks(checks) == []


@pytest.mark.parametrize(
    ("output", "around", "what", "text"),
    [
        (SAW.replace("pid 1\n", "pid 7\n"), AROUND, "processes", "a step is process 7"),
        (
            SAW.replace("/proc/1\n", "/proc/1 /proc/20\n"),
            AROUND,
            "processes",
            "a step is process 1 and sees 2 processes",
        ),
        (SAW.replace("link 17", "link 18"), AROUND, "network", "a step has not a network"),
        (SAW.replace("saw link 17\n", ""), replace(AROUND, link=None), "network", "a step has not"),
        (SAW.replace("saw route eth0\n", ""), AROUND, "network", "a step has no way out"),
        (SAW, replace(AROUND, reached=True), "network", "a step reaches servers"),
        (SAW, replace(AROUND, memory_bytes=None), "limits", "the kernel does not take limits"),
        (SAW, replace(AROUND, processes=None), "limits", "the kernel does not take limits"),
        (SAW, replace(AROUND, steps_peak_bytes=STEP_BYTES - 1), "limits", "a step had 16.8 MB"),
        (SAW, replace(AROUND, steps_peak_bytes=None), "limits", "a step had 16.8 MB, and 0 B"),
    ],
)
def test_a_promise_that_is_not_kept_is_said_with_a_remedy(
    output: str, around: Around, what: str, text: str
) -> None:
    [broken] = [check for check in isolated(output, around) if check.remedy]

    assert broken.what == what
    assert broken.text.startswith(text)


def test_a_step_that_did_not_end_is_a_build_that_fails() -> None:
    assert built(SAW.replace("saw memory 16777216\n", "")).remedy
    assert built("").remedy
    assert failed("").text == "a tiny build fails here: without a word"
    assert failed("line\n  another").text.endswith("line another")
