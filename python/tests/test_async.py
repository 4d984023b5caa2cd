"""The same lock for asyncio."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import AsyncIterator

import pytest

import lockkeeper
from lockkeeper import Lost
from tests.conftest import ENOUGH, SOON, Home, finish, line, until


async def until_async(what: str, home: Home, count: tuple[int, int]) -> None:
    await asyncio.to_thread(until, what, lambda: home.count() == count)


def test_async_with_holds_the_lock_and_releases_it(home: Home) -> None:
    async def main() -> None:
        async with lockkeeper.lock(home.name, timeout=60) as hold:
            assert hold.is_held and home.count() == (1, 0)
            await hold.acheck()
            with pytest.raises(lockkeeper.Taken, match="held by"):
                async with lockkeeper.try_lock(home.name):
                    pass
            with pytest.raises(lockkeeper.TimedOut):
                await lockkeeper.lock(home.name, timeout=1).aacquire()
        assert home.is_free()
        hold = await lockkeeper.lock(home.name).aacquire()
        await hold.arelease()
        await hold.arelease()
        async with await lockkeeper.lock(home.name).aacquire() as hold:
            assert hold.is_held
        assert home.is_free()
        with pytest.raises(ZeroDivisionError):
            async with lockkeeper.lock(home.name):
                raise ZeroDivisionError
        assert home.is_free()

    asyncio.run(main())


def test_tasks_hold_one_after_the_other_while_the_loop_goes_on(home: Home) -> None:
    async def main() -> None:
        lock = lockkeeper.lock(home.name, timeout=60)
        inside: list[int] = []
        beats = 0

        async def work(number: int) -> None:
            async with lock as hold:
                inside.append(number)
                assert inside == [number]
                await hold.acheck()
                inside.remove(number)

        async def beat() -> None:
            nonlocal beats
            while True:
                beats += 1
                await asyncio.sleep(0.001)

        other = asyncio.create_task(beat())
        await asyncio.gather(*map(work, range(8)))
        other.cancel()
        assert beats > 10

    asyncio.run(main())
    assert home.is_free()


def test_a_hold_survives_a_loop_that_blocks(home: Home) -> None:
    async def main() -> None:
        lost: list[Lost] = []
        async with lockkeeper.lock(home.name, session_timeout=ENOUGH, on_lost=lost.append) as hold:
            time.sleep(ENOUGH + 0.5)
            assert hold.is_held
            await hold.acheck()
        assert lost == []

    asyncio.run(main())


def test_a_cancelled_wait_leaves_no_waiter(home: Home) -> None:
    async def wait() -> None:
        async with lockkeeper.lock(home.name):
            raise AssertionError("it was granted")

    async def main() -> None:
        async with lockkeeper.lock(home.name):
            task = asyncio.create_task(wait())
            await until_async("it waits", home, (1, 1))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await until_async("nobody waits", home, (1, 0))
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(wait(), 0.2)
            await until_async("nobody waits again", home, (1, 0))
            # Before it does anything.
            task = asyncio.create_task(wait())
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert await asyncio.to_thread(home.is_free)

    asyncio.run(main())


def test_a_cancellation_at_the_moment_of_the_grant_is_not_lost(home: Home) -> None:
    async def main() -> None:
        flag = lockkeeper.Flag()
        task = asyncio.create_task(flag.wait_async(SOON))
        await asyncio.sleep(0)
        flag.set()
        # The loop has heard of it, and the task has not.
        for _ in range(2):
            await asyncio.sleep(0)
        assert not task.done() and task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())


def test_a_task_that_is_cancelled_under_the_lock_releases_it(home: Home) -> None:
    async def work(held: asyncio.Event) -> None:
        async with lockkeeper.lock(home.name):
            held.set()
            await asyncio.sleep(1000)

    async def main() -> None:
        held = asyncio.Event()
        task = asyncio.create_task(work(held))
        await held.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(home.is_free)

    asyncio.run(main())


def test_callbacks_run_in_the_loop_and_may_cancel_the_work(home: Home) -> None:
    async def main() -> None:
        told: list[tuple[str, threading.Thread]] = []
        done = asyncio.Event()

        async def coroutine(error: Lost) -> None:
            await asyncio.sleep(0)
            told.append((error.why, threading.current_thread()))
            done.set()

        async def fails(error: Lost) -> None:
            raise RuntimeError("a mistake in a callback")

        async def exits(error: Lost) -> None:
            sys.exit(3)

        async def work() -> None:
            async with lockkeeper.lock(home.name, on_lost=coroutine) as hold:
                task = asyncio.current_task()
                assert task is not None
                hold.on_lost(fails)
                hold.on_lost(exits)
                hold.on_lost(lambda _: sys.exit(3))
                hold.on_lost(lambda _: task.cancel())
                await asyncio.to_thread(home.lockkeeper, "break", home.name, "--reason", "it hangs", "--yes")
                await asyncio.sleep(1000)

        with pytest.raises(asyncio.CancelledError):
            await work()
        await asyncio.wait_for(done.wait(), SOON)
        assert told == [("removed", threading.main_thread())]

    asyncio.run(main())


def test_a_lock_that_is_left_in_another_task_is_released(home: Home) -> None:
    async def main() -> None:
        lock = lockkeeper.lock(home.name)
        hold = await asyncio.create_task(lock.__aenter__())
        assert hold.is_held
        await asyncio.create_task(lock.__aexit__(None, None, None))
        assert await asyncio.to_thread(home.is_free)

    asyncio.run(main())


def test_an_asynchronous_generator_that_another_task_closes_releases_its_own_hold(home: Home) -> None:
    lock = lockkeeper.lock(home.name, permits=2)

    async def held() -> AsyncIterator[lockkeeper.Hold]:
        async with lock as hold:
            yield hold

    async def main() -> None:
        generator = held()
        moved = await asyncio.ensure_future(generator.__anext__())

        async def close() -> None:
            async with lock as own:
                with pytest.raises(StopAsyncIteration):
                    await generator.__anext__()
                assert not moved.is_held and own.is_held

        await asyncio.create_task(close())
        assert await asyncio.to_thread(home.is_free)

    asyncio.run(main())


def test_a_loss_can_be_awaited(home: Home) -> None:
    async def main() -> None:
        hold = await lockkeeper.lock(home.name).aacquire()
        assert not await hold.lost.wait_async(0.01)
        await asyncio.to_thread(home.lockkeeper, "break", home.name, "--reason", "it hangs", "--yes")
        assert await hold.lost.wait_async(SOON)
        with pytest.raises(Lost):
            await hold.acheck()
        with pytest.raises(Lost):
            await hold.amake_way()
        with pytest.raises(Lost):
            async with hold:
                pass

    asyncio.run(main())


def test_an_interrupt_of_asyncio_ends_the_wait(home: Home) -> None:
    program = home.start(
        """
        import asyncio

        async def main():
            async with lockkeeper.lock(NAME):
                print("held", flush=True)
                async with lockkeeper.lock(NAME):
                    pass

        try:
            asyncio.run(main())
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        """
    )
    assert line(program) == "held"
    until("it waits", lambda: home.count() == (1, 1))
    program.send_signal(2)
    assert line(program) == "interrupted"
    finish(program)
    until("it is free", home.is_free)
