"""Rendering of a frame of the demo."""

import io
from xml.etree import ElementTree as ET

import pytest
from rich.console import Console

from gpuscaler.cli.demo_screen import Screen, rank_frame, status_line, svg_picture
from gpuscaler.control.records.events import happening as kinds
from gpuscaler.control.records.events.happening import HistoryEvent
from gpuscaler.embedded.demo.frames import Frame, Machine, Pending, PoolView

BEGAN = 1_800_000_000.0


def machine(kind: str = "g.4", *, used: int = 0, idle: int = 0, arriving: int = 0, leaving: int = 0) -> Machine:
    return Machine("m", "spot", kind, "spot", "z", used=used, idle=idle, arriving=arriving, leaving=leaving)


def frame(*machines: Machine, waiting: int = 0, decisions: int = 0, behind: float = 0.0, refused: int = 0, text: str = "idle") -> Frame:
    return Frame(
        elapsed=3723.0,
        span=7200.0,
        speed=120.0,
        behind=behind,
        pools=(PoolView("spot", machines, True, 16, refused), PoolView("cpu", (), False, 8, 0)),
        pending=tuple(Pending(f"default/p-{number}", 2, 75.0, "g.4 is ordered") for number in range(waiting)),
        running=3,
        finished=4,
        dollars_per_hour=12.5,
        spent=3.25,
        troubles=(),
        server="http://127.0.0.1:1234",
        happenings=tuple(HistoryEvent(BEGAN + 60 * number, kinds.KEPT, f"{text} {number}", node="n") for number in range(decisions)),
    )


def render(seen: Frame, *, width: int = 100, height: int = 30, encoding: str = "utf-8") -> list[str]:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    Console(file=file, width=width, height=height, highlight=False).print(Screen(seen, began=BEGAN, height=height))
    file.seek(0)
    return file.read().splitlines()


def test_gpus_are_blocks_by_state_and_machines_of_a_type_share_a_line() -> None:
    lines = render(frame(machine(used=3, idle=1), machine(arriving=4), machine(used=1, leaving=3), machine("g.1", idle=1)))

    assert "GPUs: █ 4 used  ░ 2 idle  ▒ 4 arriving  ▚ 3 leaving" in [line.rstrip() for line in lines]
    assert "  g.4           ███░ ▒▒▒▒ █▚▚▚" in lines
    assert "  g.1           ░" in lines
    assert any(line.startswith("spot  4 machines") for line in lines)
    assert not any(line.startswith("cpu") for line in lines)


def test_the_header_shows_clock_cost_and_pods() -> None:
    text = "\n".join(render(frame(waiting=1)))

    assert "gpuscaler demo  1:02:03 / 2:00:00  120x" in text
    assert "$12.50/h  $3.25 so far  3 pods running, 1 pending, 4 done" in text
    assert "kubectl --server http://127.0.0.1:1234" in text
    assert "behind" not in text


def test_the_demo_shows_how_far_its_clock_lags_behind() -> None:
    assert "5s behind" in render(frame(behind=600.0))[0]
    assert status_line(frame(behind=600.0)).endswith("; 5s behind")


def test_the_demo_shows_refused_orders_next_to_their_pool() -> None:
    assert "spot  0 machines  5 of 16 offerings paused after refusals" in render(frame(refused=5))


def test_the_demo_draws_gpus_as_letters_if_the_output_has_no_block_characters() -> None:
    seen = frame(machine(used=1, idle=1, arriving=1, leaving=1), waiting=1, decisions=2, text="far too long " * 30, behind=600.0)

    for width in (40, 100):
        text = "\n".join(render(seen, width=width, encoding="ascii"))
        assert text.isascii()
        assert "#.+x" in text


@pytest.mark.parametrize("width", [40, 60, 80, 200])
@pytest.mark.parametrize("height", [24, 30, 50])
def test_a_full_frame_of_the_demo_fits_a_terminal(width: int, height: int) -> None:
    machines = [machine(f"type-{number % 12}", used=5, idle=3) for number in range(150)]

    lines = render(frame(*machines, waiting=40, decisions=90, refused=3, text="far too long " * 30), width=width, height=height)

    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    assert sum("keeps" in line for line in lines) >= 5


def test_machines_that_do_not_fit_on_the_demo_screen_are_summarised() -> None:
    machines = [machine(f"type-{number:02}", used=8) for number in range(40)]

    lines = render(frame(*machines), height=24)

    shown = sum(line.startswith("  type-") for line in lines)
    assert 0 < shown < 40
    assert f"  and {40 - shown} more lines" in lines


def test_the_demo_lists_the_newest_decision_first() -> None:
    lines = [line for line in render(frame(decisions=9)) if "keeps" in line]

    assert lines[0] == "0:08:00 keeps      n: idle 8"


def test_control_characters_of_a_trace_never_reach_the_terminal() -> None:
    assert not any("\x1b" in line for line in render(frame(decisions=2, text="\x1b[2J")))


def test_the_svg_picture_of_the_demo_is_valid_and_loads_nothing() -> None:
    picture = svg_picture(frame(machine(used=4), waiting=2, decisions=4), began=BEGAN)

    assert ET.fromstring(picture).tag == "{http://www.w3.org/2000/svg}svg"
    assert "font-face" not in picture
    assert "url(h" not in picture


def test_a_frame_with_a_refusal_ranks_highest_as_picture_of_the_demo() -> None:
    calm, moving = frame(machine(used=4)), frame(machine(used=4), machine(arriving=4))

    assert rank_frame(calm) < rank_frame(moving) < rank_frame(frame(refused=1))


def test_the_status_of_the_demo_is_one_line() -> None:
    assert status_line(frame(machine(used=3, idle=1), waiting=2)) == (
        "1:02:03 $12.50/h, $3.25 so far; GPUs: 3 used, 1 idle, 0 arriving, 0 leaving; 3 pods running, 2 pending, 4 done"
    )
