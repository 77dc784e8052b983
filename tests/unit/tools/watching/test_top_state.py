"""What keys do to the screen of ``isthmus top``, and what is drawn of it."""

from __future__ import annotations

from rows import row, seen, tunnel

from isthmus.client.admin import AdminClient
from isthmus.tools.watching.command_top import Watcher, end_tunnel
from isthmus.tools.watching.looking import Seen
from isthmus.tools.watching.top_view import (
    Counts,
    Line,
    Mode,
    Order,
    TopState,
    screen_lines,
    summary,
)


def shown(state: TopState) -> list[str]:
    return [each.id for each in state.rows]


def state_of(count: int) -> TopState:
    state = TopState()
    state.fit(10)
    state.take([row(number) for number in range(1, count + 1)])
    return state


def press(state: TopState, *names: str) -> Order:
    order = Order.NOTHING
    for name in names:
        order = state.key(name)
    return order


def test_the_fastest_first_and_q_quits() -> None:
    state = state_of(3)
    assert shown(state) == ["3", "2", "1"] and state.line == 0
    assert press(state, "q") is Order.QUIT
    assert press(state, "redraw") is Order.REDRAW


def test_moving() -> None:
    state = state_of(30)
    assert (press(state, "down", "j", "k"), state.line) == (Order.NOTHING, 1)
    press(state, "page down")
    assert (state.line, state.first) == (11, 2)
    press(state, "end")
    assert (state.line, state.first) == (29, 20)
    press(state, "down", "home", "up")
    assert (state.line, state.first) == (0, 0)
    state.fit(1000)
    assert state.first == 0


def test_the_cursor_follows_its_tunnel() -> None:
    state = state_of(3)
    press(state, "down")
    assert state.rows[state.line].id == "2"
    state.take([row(1, rate=9000), row(2, rate=1), row(3)])
    assert shown(state) == ["1", "3", "2"] and state.line == 2
    state.take([row(1), row(3)])  # it ended: the line stays
    assert state.line == 1
    state.take([])
    assert state.line == -1 and press(state, "e") is Order.NOTHING
    assert state.mode is Mode.LIST


def test_sorting_and_reversing() -> None:
    state = state_of(3)
    press(state, "s")
    assert state.sort == "id" and shown(state) == ["1", "2", "3"]
    press(state, "r")
    assert shown(state) == ["3", "2", "1"]
    for _ in range(7):
        press(state, "s")
    assert state.sort == "id"


def test_filtering() -> None:
    state = state_of(12)
    press(state, "/", "0", ".", "1", "2", "q")  # q is a letter here
    assert state.filter == "0.12q" and shown(state) == []
    press(state, "backspace")
    assert shown(state) == ["12"]
    press(state, "enter", "s")
    assert state.mode is Mode.LIST and state.sort == "id"
    press(state, "escape")
    assert len(shown(state)) == 12
    press(state, "/", "x", "clear", "space", "escape")
    assert (state.filter, state.mode) == ("", Mode.LIST)
    press(state, "/", *"KUBE-API")
    assert len(shown(state)) == 12, "whatever its case"


def test_ending_asks_first() -> None:
    state = state_of(2)
    press(state, "e")
    assert state.mode is Mode.CONFIRM
    state.take([row(7, rate=10_000_000)])
    assert press(state, "enter") is Order.NOTHING and state.message == "not ended"
    state = state_of(2)
    assert press(state, "e", "y") is Order.END
    assert state.ending is not None and state.ending.id == "2"


def test_a_number_that_is_another_tunnels_by_now_is_not_ended() -> None:
    watcher = Watcher([AdminClient("127.0.0.1:1")], once=False)
    watcher.rows = [row(1, connection_id="of a program that began anew")]
    state = state_of(1)
    assert press(state, "e", "y") is Order.END
    end_tunnel(watcher, state, wake=lambda: None)
    assert state.message == "tunnel 1 to 10.0.0.1:443 has ended already"


def test_pausing() -> None:
    state = state_of(2)
    press(state, "space")
    state.take([row(9)])
    assert shown(state) == ["2", "1"]
    press(state, "space")
    state.take([row(9)])
    assert shown(state) == ["9"]


def draw(state: TopState, width: int = 120, height: int = 12, several: bool = False) -> list[Line]:
    head = [Line("what"), Line("who", "faint")]
    return screen_lines(state, head, several=several, size=(width, height), widths={})


def test_the_screen() -> None:
    state = state_of(30)
    lines = draw(state)
    assert len(lines) == 12 and state.page == 7
    assert lines[3].text.startswith("ID ") and "RATE*" in lines[3].text
    assert lines[4].look == "cursor" and lines[4].text.startswith("30 ")
    assert lines[-1].text.startswith("1/30  q quit")
    assert "FRONTEND" in lines[3].text and "SERVER" not in lines[3].text
    narrow = draw(state, width=60, several=True)
    assert narrow[3].text.split() == ["ID", "SERVER", "TARGET", "STATE", "RATE*", "AGE"]
    assert all(len(each.text) <= 60 for each in narrow)
    assert len(draw(state, width=5, height=3)) == 3
    assert len(draw(TopState())) == 12


def test_long_names_leave_room_for_the_figures() -> None:
    state = TopState()
    state.take([row(1, agent="x" * 253, target=f"{'y' * 60}.example:443", server="z" * 36)])
    widths: dict[str, int] = {}

    def heads_and_row(width: int) -> list[str]:
        lines = screen_lines(state, [], several=True, size=(width, 12), widths=widths)
        return [each.text for each in lines[1:3]]

    heads, first = heads_and_row(160)
    assert {"AGENT", "STATE", "TO-TARGET", "RATE*", "AGE"} <= set(heads.split())
    assert f" {'x' * 31}… " in first and "100B/s" in first
    heads, first = heads_and_row(40)
    assert heads.split() == ["ID", "TARGET", "RATE*"] and "100B/s" in first
    assert set(heads_and_row(160)[0].split()) >= {"AGENT", "AGE"}  # as it was
    state.sort = "agent"
    assert "AGENT*" in heads_and_row(40)[0]


def test_what_the_bottom_line_says() -> None:
    state = state_of(1)
    state.take([row(1, stalled="client stopped reading; 9B held for 7s")])
    lines = draw(state)
    assert "client stopped reading" in lines[-1].text
    press(state, "/", "x")
    assert draw(state)[-1].text == "/x_"
    press(state, "escape", "e")
    assert draw(state)[-1].text == (
        "End tunnel 1, certificate:kube-apiserver to 10.0.0.1:443 on cp-1? [y/N]"
    )
    press(state, "n")
    assert draw(state)[-1].text == "not ended"
    press(state, "?")
    help_ = [each.text for each in draw(state)]
    assert any("reverse the order" in each for each in help_) and "any key" in help_[-1]
    assert press(state, "q") is Order.QUIT


def test_what_a_peer_said_cannot_write_to_the_terminal() -> None:
    state = TopState()
    state.take([row(1, target="\x1b[2J\n:1", requester="\x07")])
    press(state, "e")
    assert all(each.text.isprintable() for each in draw(state))


def test_the_summary() -> None:
    counts = Counts()
    totals = {"dials": 10, "dialsFailed": 1}
    server = seen(1, "ServerSnapshot", tunnel(1), serverId="cp-1", totals=totals, agents=[{}, {}])
    counts.take([server], now=1.0)
    rows = [row(1, rate=None)]
    first = summary([server], rows, counts, clock="12:00:00")
    assert first[0].text == (
        "isthmus top  12:00:00  2 agents, 1 tunnel, 0 stalled, -, dials -, failed -"
    )
    assert first[1] == Line("server cp-1", "faint")
    server.snapshot["totals"] = {"dials": 30, "dialsFailed": 2}
    counts.take([server], now=3.0)
    second = summary([server], [row(1, rate=2048, stalled="x")], counts, clock="")
    assert "1 stalled, 2.0KiB/s, dials 10.0/s, failed 0.5/s" in second[0].text


def test_a_dial_through_several_programs_is_counted_once() -> None:
    def looked(dials: int) -> list[Seen]:
        totals = {"dials": dials, "dialsFailed": 0}
        by_worker = [{"peerId": "cp-1-w1"}]
        return [
            seen(1, "ServerSnapshot", serverId="cp-1", totals=totals),
            seen(2, "AgentSnapshot", agentId="a", totals=totals, links=[{"peerId": "cp-1"}]),
            seen(3, "AgentSnapshot", agentId="b", totals=totals, links=by_worker),
            seen(4, "SidecarSnapshot", program="socks5-proxy", totals=totals),
        ]

    counts = Counts()
    counts.take(looked(0), now=0.0)
    counts.take(looked(10), now=1.0)
    assert counts.dials_s == 10.0
    # Dials of what no server here has are theirs alone.
    alone = Counts()
    totals = {"dials": 10, "dialsFailed": 0}
    elsewhere = seen(5, "AgentSnapshot", agentId="c", totals=totals, links=[{"peerId": "cp-2"}])
    for now in (0.0, 1.0):
        alone.take([*looked(int(now) * 10), elsewhere], now=now)
        elsewhere = seen(5, "AgentSnapshot", totals={"dials": 13}, links=[{"peerId": "cp-2"}])
    assert alone.dials_s == 13.0
