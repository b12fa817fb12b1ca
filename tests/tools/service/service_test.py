#!/usr/bin/env python3
"""Tests the example service through its client: what it refuses, the budget, the queue, cancelling, preempting and
resuming, kill -9, and its page."""

import html.parser
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
import unittest
import urllib.request

_SERVICE = os.path.abspath("tools/examples/service/service")
_CLIENT = os.path.abspath("tools/examples/service/client")
_BROWSER = next(filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "google-chrome"))), None)

_STEPS = 80
_JOB = f"""
name: "tiny"
model {{ decoder {{ family: LLAMA width: 64 layers: 2 heads: 2 }} }}
data {{ path: "text.txt" }}
batch {{ global_batch: 16 micro_batch: 2 sequence_length: 64 }}
optimizer {{ learning_rate: 1e-2 }}
lr_schedule {{ steps: {_STEPS} }}
checkpoint {{ every_steps: 4 }}
runtime {{ threads_per_rank: 1 }}
"""
_LONG_JOB = _JOB.replace(f"steps: {_STEPS}", "steps: 1000000")
_WAIT_SECONDS = 60  # Only a test that fails waits as long.


class Service:
    """A service that runs, and calls of its client."""

    def __init__(self, folder, data, *flags):
        self.folder = os.path.join(folder, "jobs")
        self.process = subprocess.Popen(
            [_SERVICE, f"--folder={self.folder}", f"--data={data}", "--port=0", "--page_port=0", *flags],
            stdout=subprocess.PIPE, text=True)
        said = [self.process.stdout.readline().split() for _ in range(2)]
        if [line[:1] for line in said] != [["calls:"], ["page:"]]:
            raise AssertionError(f"the service did not start: {said}")
        self.address, self.page = said[0][1], said[1][1]

    def command(self, *words):
        return [_CLIENT, *words, f"--service={self.address}"]

    def call(self, *words):
        """Returns what a call prints, which must succeed: the values of its lines of JSON."""
        result = subprocess.run(self.command(*words), capture_output=True, text=True, check=False,
                                timeout=_WAIT_SECONDS)
        if result.returncode != 0:
            raise AssertionError(f"{words}: {result.stderr}")
        return [json.loads(line) for line in result.stdout.splitlines()]

    def refusal(self, *words):
        """Returns what a call that must fail says."""
        result = subprocess.run(self.command(*words), capture_output=True, text=True, check=False,
                                timeout=_WAIT_SECONDS)
        if result.returncode != 1 or result.stdout:
            raise AssertionError(f"{words}: {result}")
        return result.stderr

    def states(self):
        return {job["id"]: job["state"] for job in self.call("list")}

    def reports(self, job):
        """Returns the reports of a job, once it has ended, and the state in which it has."""
        events = self.call("watch", job)
        return [json.loads(event["report"]) for event in events if "report" in event], events[-1]["status"]["state"]

    def losses(self, job):
        """Returns the loss of every step of a job that finishes. Steps that it did twice must have the same."""
        reports, state = self.reports(job)
        if state != "FINISHED":
            raise AssertionError(f"{job} is {state}: {reports[-1]}")
        losses = {}
        for report in reports:
            if report["event"] == "step" and losses.setdefault(report["step"], report["loss"]) != report["loss"]:
                raise AssertionError(f"{job}: step {report['step']} differs when it is done again")
        return losses

    def wait_for_step(self, job, step):
        """Returns as soon as the job has reported a step."""
        with subprocess.Popen(self.command("watch", job), stdout=subprocess.PIPE, text=True) as watch:
            for line in watch.stdout:
                report = json.loads(json.loads(line).get("report", "{}"))
                if report.get("event") == "step" and report["step"] >= step:
                    break
            else:
                raise AssertionError(f"{job} ended before step {step}")
            watch.kill()

    def checkpoint(self, job):
        """Returns the name and the files of the newest checkpoint of a job."""
        checkpoints = os.path.join(self.folder, job, "checkpoints")
        newest = max(name for name in os.listdir(checkpoints) if name.startswith("step-"))
        files = {}
        for name in os.listdir(os.path.join(checkpoints, newest)):
            with open(os.path.join(checkpoints, newest, name), "rb") as file:
                files[name] = file.read()
        return newest, files

    def end(self, number):
        self.process.send_signal(number)
        self.process.stdout.close()
        return self.process.wait(timeout=_WAIT_SECONDS)


def write(folder, job):
    """Writes a job spec and returns its path."""
    with tempfile.NamedTemporaryFile("w", dir=folder, suffix=".textproto", delete=False) as file:
        file.write(job)
    return file.name


class Cells(html.parser.HTMLParser):
    """The cells of the rows of a page, by the ids of the rows, and the points of the curves in them."""

    def __init__(self):
        super().__init__()
        self.rows, self.points, self._row = {}, {}, None

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        if tag == "tr":
            self._row = attrs.get("id")
            self.rows[self._row] = []
        elif tag == "td":
            self.rows[self._row].append("")
        elif tag == "polyline":
            self.points[self._row] = [tuple(map(float, point.split(","))) for point in attrs["points"].split()]

    def handle_data(self, data):
        if self._row and self.rows[self._row]:
            self.rows[self._row][-1] += data


class ServiceTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        """Writes the data, and trains the reference: a job that nobody disturbs."""
        folder = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
        cls.addClassCleanup(folder.cleanup)
        cls.data = os.path.join(folder.name, "data")
        os.mkdir(cls.data)
        with open(os.path.join(cls.data, "text.txt"), "w", encoding="utf-8") as text:
            text.writelines(f"the {i * i % 97} quick brown foxes jump over the dog.\n" for i in range(400))
        service = Service(folder.name, cls.data)
        cls.addClassCleanup(service.end, signal.SIGKILL)
        service.call("submit", write(folder.name, _JOB), "--id=undisturbed")
        cls.losses = service.losses("undisturbed")
        cls.checkpoint = service.checkpoint("undisturbed")
        assert len(cls.losses) == _STEPS and cls.checkpoint[0] == f"step-{_STEPS:010}", (cls.losses, cls.checkpoint[0])

    def start(self, *flags):
        """Starts a service with a folder of its own. Returns the folder, and the service."""
        folder = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
        self.addCleanup(folder.cleanup)
        return folder.name, self.start_again(folder.name, *flags)

    def start_again(self, folder, *flags):
        service = Service(folder, self.data, *flags)
        self.addCleanup(service.end, signal.SIGKILL)
        return service

    def assert_undisturbed(self, service, *jobs):
        """Checks that jobs end in the bits of the reference, and report its losses."""
        for job in jobs:
            self.assertEqual(service.losses(job), self.losses, job)
            self.assertEqual(service.checkpoint(job), self.checkpoint, job)

    def test_jobs_run_side_by_side_as_the_budget_allows(self):
        folder, service = self.start("--threads=2")
        job = write(folder, _JOB)
        ids = [service.call("submit", job)[0]["id"] for _ in range(3)]
        self.assertEqual(ids, ["job-1", "job-2", "job-3"])
        spans = []
        for name in ids:
            reports, state = service.reports(name)
            self.assertEqual(state, "FINISHED")
            self.assertEqual([reports[0]["event"], reports[-1]["event"]], ["plan_ready", "finished"])
            spans.append((reports[0]["time"], reports[-1]["time"]))
        # Two of one thread each at a time; the third begins when one of them has ended.
        self.assertLess(spans[1][0], spans[0][1])
        self.assertGreater(spans[2][0], min(spans[0][1], spans[1][1]))
        self.assert_undisturbed(service, *ids)
        for status in service.call("list"):
            self.assertEqual((status["threads"], status["steps_done"], status["total_steps"]),
                             ("1", str(_STEPS), str(_STEPS)))
            self.assertEqual(status["loss"], self.losses[_STEPS])
            self.assertRegex(status["plan"], r"^needs .* per rank, budget ")

    def test_what_is_wrong_or_does_not_fit_is_refused(self):
        folder, service = self.start("--threads=2", "--memory_mib=64")
        for spec, said in (
                ("nonsense", r"job:1:\d+: .*"),
                (_JOB.replace("heads: 2", "heads: 3"), r"job:3:\d+: .*width 64 is not a multiple of heads 3"),
                (_JOB.replace("text.txt", "/etc/passwd"), "data.path: found a path outside of the data folder"),
                (_JOB.replace("text.txt", "../data/../x"), "data.path: found a path outside of the data folder"),
                (_JOB.replace("data {", 'data { tokenizer: "/etc"'), "data.tokenizer: found a path outside of the"),
                (_JOB.replace("data {", 'data { mix: "9 /etc"'), "data.mix: found a path outside of the"),
                (_JOB.replace("data {", 'data { cache: "/tmp"'), "data.cache: the service has its own folders"),
                (_JOB.replace("text.txt", "texts"), 'data.path: there is no "texts" in the data folder'),
                (_JOB.replace("data {", 'telemetry { run_folder: "/tmp/x" } data {'), "telemetry.run_folder: .* leave"),
                (_JOB.replace("data {", 'telemetry { sinks { events: "/tmp/x" } } data {'), "sinks: .* leave it out"),
                (_JOB.replace("threads_per_rank: 1", "device: CUDA"), "the machine is for CPU"),
                (_JOB.replace("threads_per_rank: 1", "threads_per_rank: 3"),
                 "takes 3 threads, and the service has 2; lower runtime.threads_per_rank"),
                (_JOB + "sharding { ranks: 3 }", "ranks is 3, and the machine has room for 2 ranks; fits with "),
                (_JOB.replace("width: 64", "width: 512"), "per rank, budget 64.* too little"),
                (_JOB.replace("layers: 2", "layers: 60000"), "instructions|time limit|too little"),
                ("#" * 100000, "."),
        ):
            self.assertRegex(service.refusal("submit", write(folder, spec)), said)
        self.assertEqual(service.call("list"), [])

        long_job = write(folder, _LONG_JOB)
        self.assertRegex(service.refusal("submit", long_job, "--id=../x"), r'id: found "\.\./x"; give up to 64 letters')
        first = service.call("submit", long_job, "--id=a")
        self.assertEqual(first[0]["state"], "QUEUED")
        self.assertEqual(service.call("submit", long_job, "--id=a")[0]["place"], first[0]["place"])
        self.assertIn('there is a job "a" with other settings',
                      service.refusal("submit", write(folder, _JOB), "--id=a"))
        for command in ("cancel", "preempt", "resume", "watch"):
            self.assertIn('there is no job "b"', service.refusal(command, "b"))
        self.assertIn("this call is for jobs that are preempted or failed", service.refusal("resume", "a"))
        self.assertIn("position: found 3, where no event ends", service.refusal("watch", "a", "--position=3"))
        self.assertEqual(service.call("cancel", "a")[0]["state"], "CANCELLED")
        self.assertIn("job a is CANCELLED; this call is for jobs that are queued or running",
                      service.refusal("preempt", "a"))
        self.assertEqual(list(service.states()), ["a"])

    # Regression: model.adapter.folder was not looked at, and links were not followed.
    def test_no_path_leads_out_of_the_data_folder(self):
        folder = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
        self.addCleanup(folder.cleanup)
        data, outside = os.path.join(folder.name, "data"), os.path.join(folder.name, "outside")
        os.makedirs(os.path.join(data, "texts", "more"))
        os.makedirs(outside)
        for path in (os.path.join(data, "text.txt"), os.path.join(data, "texts", "a.txt"),
                     os.path.join(outside, "secret.txt")):
            shutil.copy(os.path.join(self.data, "text.txt"), path)
        service = Service(folder.name, data)
        self.addCleanup(service.end, signal.SIGKILL)

        def refused(job):
            return service.refusal("submit", write(folder.name, job))

        links = {"file": os.path.join(outside, "secret.txt"), "folder": outside, "up": "..", "self": ".",
                 "texts/more/b.txt": "../../../outside/secret.txt", "twice": "file"}
        for name, target in links.items():
            os.symlink(target, os.path.join(data, name))
        fields = {"data.path": lambda path: _JOB.replace("text.txt", path),
                  "data.evaluation_path": lambda path: _JOB.replace("data {", f'data {{ evaluation_path: "{path}"'),
                  "data.evaluation_sources":
                      lambda path: _JOB.replace("data {", f'data {{ evaluation_sources: "e {path}"'),
                  "data.tokenizer": lambda path: _JOB.replace("data {", f'data {{ tokenizer: "{path}"'),
                  "data.mix": lambda path: _JOB.replace("data {", f'data {{ mix: "9 {path}"'),
                  "model.adapter.folder":
                      lambda path: _JOB.replace("model {", f'model {{ adapter {{ rank: 2 folder: "{path}" }}')}
        for field, job in fields.items():
            for name in ("file", "folder", "folder/secret.txt", "up", "self", "texts", "twice"):
                said = refused(job(name))
                self.assertIn(f"job: {field}: a link at or in \"{name}\" leads out of the data folder", said)
            self.assertIn(f"job: {field}: found a path outside of the data folder", refused(job(outside)))
        os.remove(os.path.join(data, "texts/more/b.txt"))
        os.symlink("nowhere", os.path.join(data, "texts/more/b.txt"))
        self.assertIn('a link in "texts" leads nowhere', refused(fields["data.path"]("texts")))
        # Links that stay inside are as good as files.
        os.remove(os.path.join(data, "texts/more/b.txt"))
        os.symlink("../../text.txt", os.path.join(data, "texts/more/b.txt"))
        os.symlink("..", os.path.join(data, "texts/more/around"))
        inside = write(folder.name, fields["data.path"]("texts/more/b.txt"))
        self.assertEqual(service.call("submit", inside)[0]["state"], "QUEUED")

    def test_jobs_and_watchers_have_bounds(self):
        folder, service = self.start("--threads=1", "--most_jobs=2", "--most_watchers=2")
        job = write(folder, _LONG_JOB)
        for name in ("a", "b"):
            service.call("submit", job, f"--id={name}")
        service.call("cancel", "b")
        self.assertIn("the service has 2 jobs, and keeps at most 2", service.refusal("submit", job))
        self.assertEqual(service.call("submit", job, "--id=a")[0]["id"], "a")  # It exists already.
        watchers = [subprocess.Popen(service.command("watch", "a"), stdout=subprocess.PIPE, text=True)
                    for _ in range(2)]
        for watcher in watchers:
            self.addCleanup(watcher.stdout.close)
            self.addCleanup(watcher.wait)
            self.addCleanup(watcher.kill)
            watcher.stdout.readline()
        self.assertIn("jobs are watched by 2 calls, and no more may be", service.refusal("watch", "b"))
        watchers[0].kill()
        deadline = time.monotonic() + _WAIT_SECONDS
        while time.monotonic() < deadline:
            if subprocess.run(service.command("watch", "b"), capture_output=True, check=False).returncode == 0:
                break
        else:
            self.fail("a watcher that was killed still counts")
        self.assertEqual(service.call("cancel", "a")[0]["state"], "CANCELLED")

    def test_a_cancelled_job_makes_room_and_stays_cancelled(self):
        folder, service = self.start("--threads=1")
        service.call("submit", write(folder, _LONG_JOB), "--id=long")
        service.call("submit", write(folder, _LONG_JOB), "--id=next")
        service.call("submit", write(folder, _JOB), "--id=short")
        service.wait_for_step("long", 2)
        self.assertEqual(service.states(), {"long": "RUNNING", "next": "QUEUED", "short": "QUEUED"})
        self.assertEqual(service.call("cancel", "next")[0]["state"], "CANCELLED")
        self.assertEqual(service.call("cancel", "long")[0]["state"], "CANCELLED")
        self.assert_undisturbed(service, "short")
        self.assertEqual(service.reports("long")[1], "CANCELLED")
        self.assertEqual(service.reports("next"), ([], "CANCELLED"))
        self.assertIn("job short is FINISHED", service.refusal("cancel", "short"))

    def test_a_preempted_job_goes_on_to_the_same_bits(self):
        folder, service = self.start("--threads=1")
        job = write(folder, _JOB)
        service.call("submit", job, "--id=first")
        service.wait_for_step("first", 5)
        status = service.call("preempt", "first")[0]
        self.assertEqual(status["state"], "PREEMPTED")
        # It saved the step that it was at, not one of those that every_steps asks for.
        self.assertEqual(service.checkpoint("first")[0], f"step-{int(status['steps_done']):010}")
        service.call("submit", job, "--id=second")
        self.assert_undisturbed(service, "second")
        self.assertEqual(service.states()["first"], "PREEMPTED")
        self.assertEqual(service.call("resume", "first")[0]["state"], "QUEUED")
        self.assert_undisturbed(service, "first")
        steps = [report["step"] for report in service.reports("first")[0] if report["event"] == "step"]
        self.assertEqual(steps, list(range(1, _STEPS + 1)))

    def test_after_kill_9_all_jobs_go_on_to_the_same_bits(self):
        folder, service = self.start("--threads=2")
        job = write(folder, _JOB)
        for name in ("aside", "a", "b", "c"):
            service.call("submit", job, f"--id={name}")
            if name == "aside":
                service.wait_for_step("aside", 2)
                service.call("preempt", "aside")
        service.call("submit", write(folder, _LONG_JOB), "--id=dropped")
        service.call("cancel", "dropped")
        position = 0
        for step, number in ((10, signal.SIGKILL), (20, signal.SIGKILL), (30, signal.SIGTERM)):
            service.wait_for_step("a", step)
            position = self.watched(service, "a", position)
            self.assertEqual(service.end(number), -signal.SIGKILL if number == signal.SIGKILL else 0)
            half = os.path.join(service.folder, ".half")  # As a kill in the middle of Submit leaves.
            os.mkdir(half)
            service = self.start_again(folder, "--threads=2")
            self.assertFalse(os.path.exists(half))
            states = service.states()
            self.assertEqual([states["aside"], states["dropped"]], ["PREEMPTED", "CANCELLED"])
        # An event that was read before has the same place after.
        events = service.call("watch", "a", f"--position={position}")
        self.assertNotEqual([event for event in events if "report" in event], [])
        self.assert_undisturbed(service, "a", "b", "c")
        service.call("resume", "aside")
        self.assert_undisturbed(service, "aside")
        resumed = [report for report in service.reports("a")[0] if report.get("stage") == "RESTORING"]
        self.assertEqual(len(resumed), 3)

    def watched(self, service, job, position):
        """Reads one event of a job and returns its position."""
        with subprocess.Popen(service.command("watch", job, f"--position={position}"), stdout=subprocess.PIPE,
                              text=True) as watch:
            positions = [int(json.loads(watch.stdout.readline())["position"]) for _ in range(2)]
            watch.kill()
        return positions[-1]

    def test_a_job_that_fails_says_why_and_can_be_resumed(self):
        folder, service = self.start("--threads=2")
        data = os.path.join(self.data, "text.txt")
        service.call("submit", write(folder, _JOB), "--id=a")
        service.wait_for_step("a", 3)
        service.call("preempt", "a")
        os.rename(data, data + ".away")
        self.addCleanup(lambda: os.path.exists(data) or os.rename(data + ".away", data))
        service.call("resume", "a")
        self.assertEqual(service.reports("a")[1], "FAILED")
        self.assertRegex(service.call("list")[0]["error"], "cannot open .*text.txt: No such file")
        os.rename(data + ".away", data)
        service.call("resume", "a")
        self.assert_undisturbed(service, "a")

    def test_a_job_that_is_too_large_for_a_later_service_holds_up_nobody(self):
        folder, service = self.start("--threads=2")
        large = _LONG_JOB.replace("threads_per_rank: 1", "threads_per_rank: 2")
        service.call("submit", write(folder, large), "--id=large")
        service.call("submit", write(folder, _JOB), "--id=small")
        service.wait_for_step("large", 2)
        self.assertEqual(service.end(signal.SIGTERM), 0)
        service = self.start_again(folder, "--threads=1")
        self.assert_undisturbed(service, "small")
        self.assertEqual(service.states()["large"], "FAILED")
        self.assertIn("takes 2 threads, and the service has 1;", service.call("list")[0]["error"])
        self.assertEqual(service.end(signal.SIGTERM), 0)
        service = self.start_again(folder, "--threads=2")
        steps_done = int(service.call("resume", "large")[0]["steps_done"])
        self.assertGreaterEqual(steps_done, 2)
        service.wait_for_step("large", steps_done + 1)

    def test_the_page_shows_the_jobs_with_their_curves(self):
        folder, service = self.start("--threads=1")
        service.call("submit", write(folder, _JOB), "--id=done")
        service.call("submit", write(folder, _LONG_JOB), "--id=waits")
        service.losses("done")
        service.call("preempt", "waits")
        with urllib.request.urlopen(service.page + "jobs", timeout=_WAIT_SECONDS) as answer:
            jobs = json.load(answer)
        self.assertEqual([(job["id"], job["state"]) for job in jobs], [("done", "FINISHED"), ("waits", "PREEMPTED")])
        self.assertEqual(jobs[0]["curve"], [[step, loss] for step, loss in self.losses.items()])
        with urllib.request.urlopen(service.page, timeout=_WAIT_SECONDS) as answer:
            self.assertIn("<title>Training jobs</title>", answer.read().decode())
        if _BROWSER is None:
            self.skipTest("there is no Chromium here, so the script of the page does not run; install "
                          "chromium-headless-shell")
        shown = subprocess.run(
            [_BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}/browser",
             "--virtual-time-budget=500", "--dump-dom", service.page],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=_WAIT_SECONDS, check=True).stdout
        cells = Cells()
        cells.feed(shown)
        self.assertIn(">2 jobs</p>", shown)
        row = cells.rows["job-done"]
        self.assertEqual(row[:4], ["done", "FINISHED", f"{_STEPS} of {_STEPS}", f"{self.losses[_STEPS]:.4f}"])
        self.assertEqual(cells.rows["job-waits"][:2], ["waits", "PREEMPTED"])
        # Falls from the upper left to the right.
        points = cells.points["job-done"]
        self.assertEqual(len(points), _STEPS)
        self.assertEqual((points[0][0], points[-1][0]), (0, 240))
        self.assertLess(points[0][1], points[-1][1])

    def test_two_services_share_neither_folder_nor_port(self):
        folder, service = self.start("--threads=2")

        def fails(*flags):
            ended = subprocess.run([_SERVICE, f"--data={self.data}", *flags], capture_output=True, text=True,
                                   check=False, timeout=_WAIT_SECONDS)
            self.assertEqual(ended.returncode, 1, ended)
            return ended.stderr

        self.assertIn(f"another service uses {service.folder}", fails(f"--folder={service.folder}", "--port=0"))
        port = service.address.split(":")[1]
        self.assertIn("give a --port that is free", fails(f"--folder={folder}/other", f"--port={port}"))
        port = re.search(r":(\d+)/", service.page).group(1)
        self.assertIn("give a --page_port that is free",
                      fails(f"--folder={folder}/other", "--port=0", f"--page_port={port}"))
        os.mkdir(os.path.join(folder, "other", "a"))
        with open(os.path.join(folder, "other", "a", "status.textproto"), "w", encoding="utf-8") as status:
            status.write("nonsense")
        self.assertIn("a/status.textproto is damaged: found no status of job a", fails(f"--folder={folder}/other"))
        self.assertIn("give --folder and --data", fails())
        self.assertIn("nowhere: No such file", fails(f"--folder={folder}/other", "--data=nowhere"))
        self.assertIn("flag 'thread'", fails("--thread=3"))

    def test_help(self):
        for program, words in ((_SERVICE, ("--memory_mib", "Ctrl-C")), (_CLIENT, ("--position", "preempt"))):
            said = subprocess.run([program, "--help"], capture_output=True, text=True, check=False).stdout
            for word in words:
                self.assertIn(word, said)


if __name__ == "__main__":
    unittest.main()
