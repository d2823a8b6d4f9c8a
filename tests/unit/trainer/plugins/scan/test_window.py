from hypothesis import given
from hypothesis import strategies as st

from megatronapp.trainer.plugins.scan.window import Window, WindowControl
from megatronapp.v1 import trace_pb2


@given(interval=st.integers(1, 20), data=st.data())
def test_every_interval_holds_one_window_of_consecutive_steps(interval: int, data: st.DataObject) -> None:
    continuous = data.draw(st.integers(1, interval))
    window = Window(enabled=True, interval=interval, continuous=continuous)

    traced = [step for step in range(1, 10 * interval + 1) if window.contains(step)]

    assert traced == [k * interval + i for k in range(10) for i in range(1, continuous + 1)]


def test_a_window_that_is_off_holds_nothing() -> None:
    assert not any(Window(enabled=False).contains(step) for step in range(1, 20))


def test_a_change_is_in_force_from_the_next_border_only() -> None:
    control = WindowControl(Window(enabled=False))

    control.request(trace_pb2.TraceControl(enabled=True, interval=7, continuous_iterations=3))

    assert not control.window.enabled
    assert control.at_border() == Window(enabled=True, interval=7, continuous=3, full=True)


def test_what_a_change_leaves_out_stays_as_it_is() -> None:
    window = Window(enabled=True, interval=9, continuous=4, full=False)

    assert window.changed(trace_pb2.TraceControl(enabled=True)) == window


def test_two_changes_between_borders_add_up() -> None:
    control = WindowControl(Window(enabled=True, full=True))

    control.request(trace_pb2.TraceControl(enabled=True, interval=8))
    control.request(trace_pb2.TraceControl(enabled=True, granularity=trace_pb2.GRANULARITY_BASE))

    assert control.at_border() == Window(enabled=True, interval=8, full=False)


def test_the_message_tells_the_window_in_force() -> None:
    window = Window(enabled=True, interval=3, continuous=1, full=False)

    assert Window(enabled=False).changed(window.message()) == window
