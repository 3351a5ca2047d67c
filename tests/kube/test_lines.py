"""Splitting pieces into lines."""

from hypothesis import given
from hypothesis import strategies as st

from gpuscaler.kube.lines import LineSplitter


@given(st.lists(st.binary(min_size=1, max_size=20).map(lambda line: line.replace(b"\n", b"x"))), st.lists(st.integers(1, 30), min_size=1))
def test_lines_are_the_same_however_the_stream_is_cut_into_pieces(lines: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(line + b"\n" for line in lines)
    splitter, fed, begin, turn = LineSplitter(), list[bytes](), 0, 0
    while begin < len(stream):
        size = cuts[turn % len(cuts)]
        fed += splitter.feed(stream[begin : begin + size])
        begin, turn = begin + size, turn + 1
    assert fed == [line for line in lines if not line.isspace()]
    assert splitter.rest() == b""


def test_content_after_the_last_newline_is_kept_separate() -> None:
    splitter = LineSplitter()
    assert splitter.feed(b"one\ntwo") == [b"one"]
    assert splitter.feed(b"") == []
    assert splitter.rest() == b"two"
    assert splitter.rest() == b""


def test_a_long_line_in_small_pieces_takes_linear_time() -> None:
    splitter = LineSplitter()
    for _ in range(200_000):
        assert splitter.feed(b"x" * 64) == []
    [line] = splitter.feed(b"\n")
    assert len(line) == 12_800_000
