"""Tests what ends calls of the Python package: Ctrl-C, stops, exceptions of callbacks, and a fork."""

import json
import os
import signal
import sys
import threading
import unittest

import shale

from trainers import TestOfTrainers


class InterruptsTest(TestOfTrainers):
    def test_ctrl_c_ends_the_checks(self):
        # A process that a shell started in the background ignores Ctrl-C.
        handler = signal.signal(signal.SIGINT, signal.default_int_handler)
        self.addCleanup(signal.signal, signal.SIGINT, handler)

        def interrupt(_):
            os.kill(os.getpid(), signal.SIGINT)

        def fail(check):
            raise KeyError(check.name)

        for on_check, error in ((interrupt, KeyboardInterrupt), (fail, KeyError)):
            with self.assertRaises(error):
                shale.verify(self.job, data=self.samples(), on_check=on_check, temporary_folder=self.folder)
            self.assertEqual(os.listdir(self.folder), [])
        stop = shale.Stop()
        with self.assertRaises(shale.Cancelled):
            shale.verify(self.job, data=self.samples(), on_check=lambda _: stop.request(), stop=stop)

    def test_ctrl_c_saves_and_leaves(self):
        folder = os.path.join(self.folder, "checkpoints")
        with self.assertRaises(KeyboardInterrupt):
            with shale.Trainer(self.job, data=self.samples(), checkpoint_folder=folder) as trainer:
                trainer.step()
                raise KeyboardInterrupt
        with shale.Trainer(self.job, data=self.samples(), checkpoint_folder=folder, resume="latest") as trainer:
            self.assertEqual(trainer.resumed_from, 1)

    def interrupted(self, call):
        """Checks that a Ctrl-C which comes while `call` computes is raised by it, and nothing is dropped."""
        handler = signal.signal(signal.SIGINT, signal.default_int_handler)
        self.addCleanup(signal.signal, signal.SIGINT, handler)
        dropped = []
        hook, sys.unraisablehook = sys.unraisablehook, dropped.append
        self.addCleanup(setattr, sys, "unraisablehook", hook)
        timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with self.assertRaises(KeyboardInterrupt):
            call()
            timer.join()
        timer.join()
        self.assertEqual(dropped, [])

    # Regression: the exception was raised where the engine called back, outside of any `try`, and was dropped: the run
    # and the text went on to their ends as if nobody had asked.
    def test_ctrl_c_ends_run_and_generate(self):
        job = self.job.with_set({"lr_schedule.steps": 10**6, "runtime.generate": True})
        folder = os.path.join(self.folder, "checkpoints")
        steps = []

        def keep(report):
            steps.append((report.step, threading.current_thread()))

        for on_step in (None, keep):
            with shale.Trainer(job, data=self.samples(), checkpoint_folder=folder, resume="auto") as trainer:
                self.interrupted(lambda: trainer.run(on_step))  # pylint: disable=cell-var-from-loop
                self.assertLess(trainer.steps_done, 10**6)
                self.assertTrue(trainer.done)
        with shale.Trainer(job, data=self.samples(), checkpoint_folder=folder, resume="latest") as trainer:
            # The step that ran when Ctrl-C came is done and saved, but on_step is not called any more.
            self.assertIn(trainer.resumed_from, (steps[-1][0], steps[-1][0] + 1))
            for on_token in (None, lambda _: None):
                self.interrupted(lambda: trainer.generate([1], 10**6, on_token=on_token))
        self.assertEqual({thread for _, thread in steps}, {threading.main_thread()})

        def fail(_):
            raise KeyError("on_step")

        with shale.Trainer(job, data=self.samples()) as trainer, self.assertRaises(KeyError):
            trainer.run(fail)

    # Regression: the forked process waited forever.
    def test_a_forked_process_refuses_the_trainer(self):
        with shale.Trainer(self.job, data=self.samples()) as trainer:
            trainer.step()
            child = os.fork()
            if child == 0:
                said = []
                for use in (trainer.step, trainer.close, lambda: shale.Trainer(self.job, data=self.samples())):
                    try:
                        use()
                    except shale.FailedPrecondition as error:
                        said.append("this process was forked from one that had used a trainer" in str(error))
                os._exit(0 if said == [True] * 3 else 1)
            self.assertEqual(os.waitpid(child, 0)[1], 0)
            trainer.step()

    def test_events_and_stops_from_another_thread(self):
        events = []
        with shale.Trainer(self.job, data=self.samples(), on_event=events.append) as trainer:
            def stop(report):
                if report.step == 2:
                    thread = threading.Thread(target=trainer.request_stop)
                    thread.start()
                    thread.join()

            trainer.run(stop)
            self.assertEqual(trainer.steps_done, 2)
            self.assertTrue(trainer.done)
            with self.assertRaises(shale.FailedPrecondition):
                trainer.step()
        self.assertEqual([json.loads(e)["event"] for e in events][-3:], ["step", "step", "finished"])


if __name__ == "__main__":
    unittest.main()
