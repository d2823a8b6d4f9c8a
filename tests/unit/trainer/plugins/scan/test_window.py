from hypothesis import given
from hypothesis import strategies as st

from megatronapp.trainer.plugins.scan.window import Window


@given(interval=st.integers(1, 20), data=st.data())
def test_every_interval_holds_one_window_of_consecutive_steps(interval: int, data: st.DataObject) -> None:
    continuous = data.draw(st.integers(1, interval))
    window = Window(enabled=True, interval=interval, continuous=continuous)

    traced = [step for step in range(1, 10 * interval + 1) if window.contains(step)]

    assert traced == [k * interval + i for k in range(10) for i in range(1, continuous + 1)]


def test_a_window_that_is_off_holds_nothing() -> None:
    assert not any(Window(enabled=False).contains(step) for step in range(1, 20))


def test_a_window_is_what_its_control_says() -> None:
    window = Window(enabled=True, interval=3, continuous=1, full=False)

    assert Window.of(window.control()) == window
