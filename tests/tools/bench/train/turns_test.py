#!/usr/bin/env python3
"""Tests the turns of contestants: their order, and that those who wait are stopped."""

import os
import sys
import tempfile
import threading
import time
import unittest
import unittest.mock

sys.path[:0] = ["tools", "tests/tools/bench/train"]

from bench.train import process, turns  # noqa: E402
from records import state_of  # noqa: E402


class TurnsTest(unittest.TestCase):
    def test_they_follow_each_other_in_order_and_who_leaves_is_passed_over(self):
        rotation = turns.Rotation()
        members = [rotation.join() for _ in range(3)]
        order = []

        def run(number, times):
            members[number].wait()
            for left in range(times, 0, -1):
                order.append(number)
                if left > 1:
                    members[number].next()
            members[number].leave()

        threads = [threading.Thread(target=run, args=(number, times)) for number, times in ((0, 3), (1, 1), (2, 2))]
        for thread in reversed(threads):
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(order, [0, 1, 2, 0, 2, 0])

    def test_the_end_reaches_who_waits(self):
        rotation = turns.Rotation()
        rotation.join()
        second = rotation.join()
        rotation.end()
        with self.assertRaises(process.Ended):
            second.wait()

    def test_a_step_stops_its_processes_until_the_next_turn(self):
        with tempfile.TemporaryDirectory() as folder:
            turn = turns.Rotation().join()
            turn.by_step(r"step \d", warmup=1, turns=2, each=2)
            stops = []
            # The shell waits in this pipe after the steps that end a turn, however late the signal to stop reaches it.
            pipe = os.path.join(folder, "go on")
            os.mkfifo(pipe)
            end_of_pipe = os.open(pipe, os.O_RDWR)

            def next_turn(go_on=turn.next):
                pid = turn._processes[0].pid
                while state_of(pid) != "T":  # A signal takes effect with a delay.
                    time.sleep(0.001)
                stops.append(pid)
                os.write(end_of_pipe, b"\n")
                go_on()

            turn.next = next_turn
            script = "for i in 1 2 3 4 5; do echo step $i; case $i in 1|3) read go < \"$0\";; esac; done; echo end"
            group = process.run([["/bin/sh", "-c", script, pipe]], dict(os.environ), folder, "p", turn)
            os.close(end_of_pipe)
        self.assertEqual(len(stops), 2)
        self.assertEqual(len(turn.seconds), 2)
        self.assertEqual([text for _, text in group.outcomes[0].lines], [f"step {i}" for i in range(1, 6)] + ["end"])

    def test_the_time_of_a_turn_is_that_of_one_of_its_steps(self):
        turn = turns.Rotation().join()
        turn.by_step("step", warmup=0, turns=1, each=2)
        with unittest.mock.patch("time.monotonic", return_value=turn._began + 3):
            for _ in range(2):
                turn.line("step")
        self.assertEqual(turn.seconds, [1.5])


if __name__ == "__main__":
    unittest.main()
