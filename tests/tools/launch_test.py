#!/usr/bin/env python3
"""Tests jobs in several processes: the same bits as in threads, saves, restarts and ends, by tools/launch and by hand.
"""

import glob
import json
import os
import re
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
from job_in_processes import ENDLESS, LAUNCH, RUN, TRAIN, JobInProcesses  # pylint: disable=wrong-import-position

_EXAMPLE = os.path.abspath("tools/examples/in_processes")
# Lets no process listen at a port that the system chooses, as Gloo does.
_NO_NETWORK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <netinet/in.h>
int bind(int file, const struct sockaddr* address, socklen_t size) {
  const int family = address->sa_family;
  const in_port_t port = family == AF_INET ? ((const struct sockaddr_in*)address)->sin_port
                       : family == AF_INET6 ? ((const struct sockaddr_in6*)address)->sin6_port : 1;
  if (port == 0) return errno = ENETDOWN, -1;
  return ((int (*)(int, const struct sockaddr*, socklen_t))dlsym(RTLD_NEXT, "bind"))(file, address, size);
}
"""
_PEER = 3  # The exit code of a process whose job failed in another one.


class LaunchTest(JobInProcesses):
    def test_processes_train_the_bits_of_threads(self):
        jobs = {
            "fp32": (),
            "bf16": ("--set=precision.compute=BF16",),
            "zero1": ("--set=sharding.strategy=ZERO1", "--set=sharding.accumulation=NO_SYNC"),
            "zero2": ("--set=sharding.strategy=ZERO2", "--set=sharding.accumulation=SHARDED"),
            "ddp": ("--set=sharding.strategy=DDP", "--set=sharding.accumulation=LAYERED"),
            "hybrid": ("--set=sharding.shard_ranks=2", "--set=precision.compute=BF16"),
        }
        for job, arguments in jobs.items():
            self.train(job, 0, *arguments)
            for processes in (2, 4) if job in ("fp32", "bf16") else (3,):
                with self.subTest(job=job, processes=processes):
                    name = f"{job}-{processes}"
                    output = self.train(name, processes, *arguments)
                    self.assertRegex(output, rf"^process 0 of {processes}, .* by Shale's launcher; ")
                    self.assertEqual(output.count("done; the run is in runs/test"), 1)
                    self.expect_same(job, name)

    def test_a_program_of_ones_own_trains_in_processes(self):
        self.train("tool", 0)
        for name, launcher in (("alone", []), ("together", [LAUNCH, "--processes=3", "--"])):
            command = [*launcher, _EXAMPLE, "job.textproto", f"{RUN}/checkpoints"]
            process = self.start(name, command)
            output = process.communicate(timeout=120)[0]
            self.assertEqual(process.returncode, 0, output)
            self.assertEqual(self.checkpoints(name), self.checkpoints("tool"))

        # What one process refuses ends the others.
        self.place("wrong")
        with open(os.path.join(self.place("wrong"), "text.txt"), "w", encoding="utf-8") as out:
            out.write("x")
        process = self.start("wrong", [LAUNCH, "--processes=3", "--", _EXAMPLE, "job.textproto", "checkpoints"])
        output = process.communicate(timeout=120)[0]
        self.assertNotEqual(process.returncode, 0, output)
        self.assertIn("in_processes: process 0: ", output)
        self.assertNotIn("process 0: process 0: ", output)

    def test_a_run_resumes_in_other_processes_and_with_other_ranks(self):
        constant = "--set=lr_schedule.shape=CONSTANT"
        self.train("straight", 0, constant)
        self.train("resumed", 4, constant, "--set=lr_schedule.steps=3")
        self.train("resumed", 2, constant, "--set=lr_schedule.steps=4", "--resume=latest")
        output = self.train("resumed", 0, constant, "--resume=latest")
        self.assertIn("resuming from runs/test/checkpoints/step-0000000004 after step 4", output)
        newest = "runs/test/checkpoints/step-0000000006/"
        shards = {path: content for path, content in self.checkpoints("straight").items()
                  if path.startswith(newest)}
        self.assertEqual(len(shards), 4)
        for path, content in shards.items():
            self.assertTrue(self.checkpoints("resumed")[path] == content, path)
        # With other ranks, sums are in another order.
        output = self.train("resumed", 3, constant, "--resume=latest", "--set=sharding.ranks=5",
                            "--set=lr_schedule.steps=8")
        self.assertIn("resuming from runs/test/checkpoints/step-0000000006 after step 6", output)
        self.assertIn("done; the run is in runs/test", output)

    def test_one_trace_has_the_ranks_of_all_processes(self):
        output = self.train("traced", 3, "--trace=trace.json", "--trace_steps=3")
        self.assertIn("trace: trace.json", output)
        with open(os.path.join(self.place("traced"), "trace.json"), encoding="utf-8") as file:
            events = json.load(file)["traceEvents"]
        self.assertEqual(glob.glob(os.path.join(self.place("traced"), RUN, "*trace*")), [])
        meetings = {}  # The events of each collective, which all ranks enter before one leaves it.
        for event in events:
            if event["ph"] == "X" and event["name"].startswith(("AllReduce", "AllGather", "ReduceScatter")):
                args = event["args"]
                key = (args["step"], args["instruction"], args.get("micro_batch"))
                meetings.setdefault(key, []).append(event)
        self.assertGreater(len(meetings), 3)
        for meeting in meetings.values():
            ranks = sorted(event["pid"] for event in meeting)
            self.assertEqual(ranks, sorted([0, 1, 2, 3] * (len(meeting) // 4)))
            if len(meeting) > 4:
                continue  # Several iterations of a loop.
            self.assertLess(max(event["ts"] for event in meeting),
                            min(event["ts"] + event["dur"] for event in meeting) + 0.01)
        results = self.by_hand(["traces"] * 2, ("--trace=trace.json",), ())
        self.assertEqual([code for code, _ in results], [2, 2], results)
        self.assertRegex(results[0][1], 'disagree about the trace: process 0 has "one of 2 steps from step 3", process '
                         '1 has "none"')

    def test_a_job_that_is_started_again_ends_in_the_bits_of_the_undisturbed_one(self):
        arguments = ("--set=lr_schedule.steps=100", "--set=checkpoint={every_steps: 10 keep_last: 2}", "--resume=auto")
        self.train("straight", 0, *arguments)
        process, pids = self.running("again", 2, *arguments, step=25, restarts=1)
        os.kill(pids[1], signal.SIGKILL)
        output = process.communicate(timeout=60)[0]
        self.assertEqual(process.returncode, 0, output)
        self.assertIn("launch: a process ended with code 137; starting all again (1 of 1)", output)
        self.assertRegex(output, "resuming from runs/test/checkpoints/step-00000000[12]0")
        self.expect_same("straight", "again")
        with open(os.path.join(self.place("again"), RUN, "metrics.jsonl"), encoding="utf-8") as lines:
            rows = [row for row in map(json.loads, lines) if "restart" in row]
        step = int(re.search(r"resuming from .* after step (\d+)", output)[1])
        cause = f"signal 9 ended process 1 (pid {pids[1]} on {socket.gethostname()})"
        self.assertEqual(rows, [{"step": step, "restart": 1, "cause": cause}])

    def test_a_signal_to_the_launcher_saves_and_ends_all(self):
        for number in (signal.SIGTERM, signal.SIGUSR1):
            name = f"stopped-{number}"
            process, _ = self.running(name, 3, *ENDLESS)
            process.send_signal(number)
            output = process.communicate(timeout=60)[0]
            self.assertEqual(process.returncode, 128 + number, output)
            step = int(re.search(r"stopped after step (\d+) of 1,000,000; the run is in runs/test", output)[1])
            self.assertTrue(os.path.isdir(os.path.join(self.place(name), RUN, f"checkpoints/step-{step:010d}")))

    def test_what_torchrun_and_the_grace_period_ask_for(self):
        path = os.path.join(self.place("cluster"), "error.json")
        command = [TRAIN, "--job=job.textproto"]
        process = self.start("cluster", [*command, "--set=data.path=nowhere.txt"], TORCHELASTIC_ERROR_FILE=path)
        output = process.communicate(timeout=60)[0]
        self.assertEqual(process.returncode, 2, output)
        with open(path, encoding="utf-8") as file:
            message = json.load(file)["message"]
        self.assertRegex(message["message"], "cannot open .*nowhere.txt")
        self.assertGreater(int(message["extraInfo"]["timestamp"]), 0)
        process = self.start("cluster", [*command, "--grace_seconds=0"], TORCHELASTIC_RESTART_COUNT="2")
        output = process.communicate(timeout=60)[0]
        self.assertEqual(process.returncode, 0, output)
        self.assertRegex(output, r"warning: a save of \S+ KiB probably takes \S+, and after SIGTERM a process has 0 s")
        with open(os.path.join(self.place("cluster"), RUN, "metrics.jsonl"), encoding="utf-8") as lines:
            row = json.loads(lines.readline())
        self.assertEqual(row, {"step": 0, "restart": 2, "cause": "torchrun started the job again"})

    def test_the_process_that_fails_is_the_only_one_with_the_exit_code_and_the_error_file_of_a_failure(self):
        place = self.place("culprit")
        arguments = (*ENDLESS, "--set=data.evaluation_fraction=0")
        files = [os.path.join(place, f"error-{number}.json") for number in range(2)]
        started = self.start_by_hand(["culprit"] * 2, [arguments] * 2, [{"TORCHELASTIC_ERROR_FILE": path}
                                                                        for path in files])
        for line in started[0].stdout:
            if re.match("step +2/", line):
                break
        os.truncate(os.path.join(place, "text.txt"), 0)
        outputs = [process.communicate(timeout=60)[0] for process in started]
        codes = [process.returncode for process in started]
        self.assertEqual(sorted(codes), [1, _PEER], outputs)
        culprit = codes.index(1)
        self.assertRegex(outputs[culprit], rf"train, process {culprit}: .*text.txt changed after it was checked")
        self.assertRegex(outputs[1 - culprit], rf"train, process {1 - culprit}: process {culprit} \(pid "
                         rf"{started[culprit].pid} on .*\) ended the job: .*text.txt")
        self.assertEqual([os.path.exists(path) for path in files], [number == culprit for number in range(2)])
        with open(files[culprit], encoding="utf-8") as file:
            self.assertRegex(json.load(file)["message"]["message"], "text.txt changed after it was checked")

    def test_the_launcher_ends_with_the_code_of_the_culprit(self):
        script = "sleep 0.$SHALE_PROCESS; [ $SHALE_PROCESS = 1 ] && exit 7; exit 3"
        process = self.start("codes", [LAUNCH, "--processes=3", "--", "sh", "-c", script])
        output = process.communicate(timeout=60)[0]
        self.assertEqual(process.returncode, 7, output)  # Process 0 ended first, but only because of another one.

    def test_what_does_not_end_after_a_signal_is_killed(self):
        launch = runpy.run_path(LAUNCH)
        self.assertEqual(launch["_SECONDS_TO_END"]["stopped"], (30.0, 2.0))
        launch["_SECONDS_TO_END"]["stopped"] = (1.0, 0.2)
        path = self.place("deaf")
        # Process 0 ends at once, process 1 after it has saved, and process 2 never.
        script = (f"cd {path}; trap 'sleep 0.'$((SHALE_PROCESS * 4))'; touch saved-$SHALE_PROCESS; "
                  "[ $SHALE_PROCESS = 2 ] || exit 143' TERM; touch ready-$SHALE_PROCESS; "
                  "while true; do sleep 0.05; done")
        job = launch["Launch"](0)

        def stop():
            while len(glob.glob(os.path.join(path, "ready-*"))) < 3:
                time.sleep(0.01)
            job.take_signal(signal.SIGTERM, None)

        thread = threading.Thread(target=stop)
        thread.start()
        code = job.run(["bash", "-c", script], [{"SHALE_PROCESS": str(number)} for number in range(3)])
        thread.join()
        self.assertEqual(code, 128 + signal.SIGTERM)
        self.assertEqual(sorted(os.path.basename(name) for name in glob.glob(os.path.join(path, "saved-*"))),
                         ["saved-0", "saved-1", "saved-2"])
        self.assertFalse(job.may_restart(code))

    # Regression: a process that was stopped after it had left the job kept the launcher forever.
    def test_a_process_that_is_stopped_while_others_end_is_continued(self):
        launch = runpy.run_path(LAUNCH)
        launch["_SECONDS_TO_END"].update(failed=(0.1, 0.1), stopped=(0.3, 0.1), done=(0.3, 0.1))
        launch["Launch"]._continue_stopped.__globals__["_SECONDS_STOPPED"] = 0.1
        stop = "[ $SHALE_PROCESS = %d ] && kill -STOP $$; "
        for script, wanted, may_restart in (
            (stop % 2 + "exit 0", 0, False),  # It had done its part.
            (stop % 0 + "exit 0", 0, False),
            (stop % 2 + "exit $((3 - 2 * SHALE_PROCESS))", 1, True),  # Others have failed; nothing continues it.
            (stop % 2 + "[ $SHALE_PROCESS = 2 ] && exit 5; exit 0", 5, False),
            ("[ $SHALE_PROCESS = 0 ] || exec sleep 60", 0, False)):  # Hangs behind process 0.
            job = launch["Launch"](0)
            code = job.run(["bash", "-c", script], [{"SHALE_PROCESS": str(number)} for number in range(3)])
            self.assertEqual((code, job.may_restart(code)), (wanted, may_restart), script)

    # Regression: every error of a run that starts counted as a wrong job, code 2, which is never started again.
    def test_a_failure_of_the_network_at_the_start_is_started_again(self):
        place = self.place("network")
        source, library = os.path.join(place, "bind.c"), os.path.join(place, "bind.so")
        with open(source, "w", encoding="utf-8") as out:
            out.write(_NO_NETWORK)
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
        script = f'[ "$SHALE_PROCESS$SHALE_RESTARTS" = 1 ] && export LD_PRELOAD={library}; exec "$@"'
        process = self.start("network", [LAUNCH, "--processes=2", "--max_restarts=1", "--", "sh", "-c", script, "sh",
                                         TRAIN, "--job=job.textproto", "--resume=auto"])
        output = process.communicate(timeout=60)[0]
        self.assertEqual(process.returncode, 0, output)
        self.assertIn("launch: a process ended with code 1; starting all again (1 of 1)", output)
        self.assertRegex(output, "Network is (down|unreachable)")
        self.assertIn("done; the run is in runs/test", output)

    def test_restarts_that_follow_one_another_wait(self):
        process = self.start("short", [LAUNCH, "--processes=1", "--max_restarts=2", "--", "sh", "-c", "exit 4"])
        output = process.communicate(timeout=60)[0]
        self.assertEqual(process.returncode, 4)
        self.assertRegex(output, r"all again \(1 of 2\)\n.*all again in 0.5 s \(2 of 2\)\n")

    # Regression: a launcher that was killed left the file with the secret behind; an empty secret let everybody join.
    def test_the_secret_is_in_no_file_and_never_empty(self):
        script = 'echo "$SHALE_TOKEN:$SHALE_TOKEN_FILE"; ls -A'
        process = self.start("secrets", [LAUNCH, "--processes=1", "--", "sh", "-c", script],
                             TMPDIR=self.place("secrets"))
        self.assertRegex(process.communicate(timeout=60)[0], r"^[0-9a-f]{32}:\njob.textproto\ntext.txt\n$")
        for name in ("SHALE_TOKEN", "SHALE_TOKEN_FILE"):
            process = self.start("empty", [LAUNCH, "--processes=2", "--", TRAIN, "--job=job.textproto"], **{name: ""})
            output = process.communicate(timeout=60)[0]
            self.assertEqual(process.returncode, 2, output)
            self.assertIn(f"{name} is set and empty, so everybody could join the job", output)

    def test_what_is_wrong_at_the_start_is_said_once(self):
        output = self.train("refused", 3, "--set=data.path=nowhere.txt", code=2)
        self.assertEqual(len(re.findall("cannot open .*nowhere.txt", output)), 1, output)
        # Regression: it was "train, process 0: process 0: data.path: ...".
        self.assertRegex(output, re.compile("^train: process 0: data.path: cannot open .*nowhere.txt", re.MULTILINE))
        self.assertFalse(os.path.exists(os.path.join(self.place("refused"), "runs/test")))
        output = self.train("refused", 5, code=2)
        self.assertIn("started 5 processes, and the job has 4 ranks", output)
        output = self.train("refused", 2, "--verify", code=2)
        self.assertIn("--verify checks a job in one process, and Shale's launcher started 2", output)

    def start_by_hand(self, names, jobs, variables):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = [TRAIN, f"--job={self.place(names[0])}/job.textproto"]
        return [
            self.start(name, [*command, *job], RANK=str(rank), WORLD_SIZE=str(len(names)), MASTER_ADDR="127.0.0.1",
                       MASTER_PORT=str(port), **own)
            for rank, (name, job, own) in enumerate(zip(names, jobs, variables))
        ]

    def by_hand(self, names, *jobs):
        """Starts a process in each place, with the variables that launchers share. Returns its code and output."""
        started = self.start_by_hand(names, jobs, [{}] * len(names))
        outputs = [process.communicate(timeout=60)[0] for process in started]
        return [(process.returncode, output) for process, output in zip(started, outputs)]

    def test_variables_by_hand_start_a_job_too(self):
        self.train("threads", 0)
        for code, output in self.by_hand(["by-hand"] * 2, (), ()):
            self.assertEqual(code, 0, output)
        self.expect_same("threads", "by-hand")

    def test_processes_must_agree_about_job_and_folder(self):
        results = self.by_hand(["job"] * 2, (), ("--set=optimizer.learning_rate=2e-2",))
        self.assertEqual([code for code, _ in results], [2, 2], results)
        self.assertRegex(results[0][1], "disagree about the job: process 0 has \"learning_rate: 0.01\", process 1 has "
                         "\"learning_rate: 0.02\"; ")
        results = self.by_hand(["ranks"] * 2, (), ("--set=sharding.ranks=8",))
        self.assertEqual([code for code, _ in results], [2, 2], results)
        self.assertRegex(results[0][1], r'process 0 has sharding.ranks "4", process 1 .* has sharding.ranks "8"')
        results = self.by_hand(["here", "there"], (), ())
        self.assertEqual([code for code, _ in results], [2, 2], results)
        self.assertRegex(results[0][1], "train: process 1: the process on .* does not see the file that process 0 ")

    def test_a_process_that_cannot_join_is_named_by_the_others(self):
        for wrong in (0, 1):
            jobs = [("--set=batch.global_batch=no",) if process == wrong else () for process in range(2)]
            results = self.by_hand([f"declined-{wrong}"] * 2, *jobs)
            self.assertEqual(results[wrong][0], 2, results)
            self.assertEqual(results[1 - wrong][0], _PEER, results)
            self.assertRegex(results[1 - wrong][1], rf"process {wrong} \(pid \d+ on .*\) cannot take part: INVALID_ARG"
                             ".*global_batch")

    def certificate(self, name, *signer):
        """Makes a certificate and its key with the program openssl, and returns their paths."""
        paths = [os.path.join(self.folder, name + ending) for ending in (".pem", ".key")]
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                   "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1", "-out", paths[0], "-keyout",
                   paths[1]]
        if signer:
            command += ["-CA", signer[0], "-CAkey", signer[1]]
        subprocess.run(command, check=True, capture_output=True)
        return paths

    def test_certificates_encrypt_the_control_plane(self):
        if shutil.which("openssl") is None:
            self.skipTest("wanted the program openssl")
        authority = self.certificate("authority")
        certificate, key = self.certificate("process", *authority)
        variables = {"SHALE_TLS_CERTIFICATE": certificate, "SHALE_TLS_KEY": key, "SHALE_TLS_AUTHORITY": authority[0]}
        command = [LAUNCH, "--processes=2", "--", TRAIN, "--job=job.textproto", "--set=lr_schedule.steps=2"]
        process = self.start("secret", command, **variables)
        output = process.communicate(timeout=60)[0]
        self.assertEqual(process.returncode, 0, output)
        self.assertIn("done; the run is in runs/test", output)
        variables["SHALE_TLS_KEY"] = authority[1]
        process = self.start("secret", command, **variables)
        output = process.communicate(timeout=60)[0]
        self.assertEqual(process.returncode, 2, output)
        self.assertIn(f"the private key in SHALE_TLS_KEY={authority[1]} does not belong to the certificate in "
                      f"SHALE_TLS_CERTIFICATE={certificate}", output)

    def test_a_process_that_is_killed_before_it_joins_is_named_by_the_launcher(self):
        for victim in (0, 1):
            script = f'[ $SHALE_PROCESS = {victim} ] && kill -9 $$; exec "$@"'
            process = self.start(f"early-{victim}", [
                LAUNCH, "--processes=2", "--", "sh", "-c", script, "sh", TRAIN, "--job=job.textproto"
            ])
            output = process.communicate(timeout=60)[0]  # Alone, the other would wait five minutes.
            self.assertEqual(process.returncode, 128 + signal.SIGKILL, output)
            self.assertRegex(output, rf"launch: signal 9 ended process {victim} \(pid \d+\)")

    def hosts(self):
        """Makes two hosts: network namespaces that a cable joins, as slow as the machine can make it. Returns what
        stands before a command that runs on each. Skips the test where the machine allows no namespaces."""
        hosts = []
        for number, begin in enumerate((["unshare", "--user", "--map-root-user"], [])):
            command = f"hostname host-{number} && ip link set lo up && echo ready && exec sleep 120"
            unshare = [*(begin or [*hosts[0], "unshare"]), "--net", "--uts", "sh", "-c", command]
            process = self.start("hosts", unshare)
            if process.stdout.readline() != "ready\n":
                self.skipTest("this machine allows no network namespaces")
            hosts.append(["nsenter", f"--target={process.pid}", "--user", "--net", "--uts", "--preserve-credentials"])
        subprocess.run([*hosts[0], "ip", "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns",
                        hosts[1][1].split("=")[1]], check=True)
        for number, on_host in enumerate(hosts):
            subprocess.run([*on_host, "ip", "addr", "add", f"10.77.0.{number + 1}/24", "dev", "cable"], check=True)
            subprocess.run([*on_host, "ip", "link", "set", "cable", "up"], check=True)
            # Not all kernels can delay packets.
            slow = [*on_host, "tc", "qdisc", "add", "dev", "cable", "root"]
            if subprocess.run([*slow, "netem", "delay", "5ms", "rate", "1gbit"], check=False).returncode != 0:
                subprocess.run([*slow, "tbf", "rate", "1gbit", "burst", "1mbit", "latency", "50ms"], check=False)
        return hosts

    def test_two_hosts_notice_a_cut_cable_and_go_on_when_it_is_mended(self):
        os.environ["PATH"] += ":/usr/sbin:/sbin"  # Of ip and tc.
        if not all(map(shutil.which, ("unshare", "nsenter", "ip", "tc"))):
            self.skipTest("wanted unshare, nsenter, ip and tc")
        hosts = self.hosts()

        def start(*arguments):
            return [
                self.start("cable", [*on_host, LAUNCH, "--processes=2", "--hosts=10.77.0.1,10.77.0.2",
                                     f"--host_index={number}", "--", TRAIN, "--job=job.textproto",
                                     "--set=lr_schedule.shape=CONSTANT", "--set=telemetry.evaluate_every=0",
                                     *arguments], SHALE_TOKEN="secret") for number, on_host in enumerate(hosts)
            ]

        launches = start("--set=lr_schedule.steps=1000000", "--set=checkpoint={every_steps: 5 keep_last: 2}",
                         "--set=telemetry.print_every=1")
        for line in launches[0].stdout:
            if re.match("step +15/", line):
                break
        subprocess.run([*hosts[0], "ip", "link", "set", "cable", "down"], check=True)
        outputs = [launch.communicate(timeout=60)[0] for launch in launches]
        self.assertRegex(outputs[0], "train, process 0: process [23] .*host-1.* has not been heard from for 8 s")
        self.assertRegex(outputs[1], "train, process 2: process 0 at 10.77.0.1:29400.* has not been heard from for ")
        self.assertNotIn(0, [launch.returncode for launch in launches])

        subprocess.run([*hosts[0], "ip", "link", "set", "cable", "up"], check=True)
        newest = max(glob.glob(os.path.join(self.place("cable"), RUN, "checkpoints/step-*")))
        last = int(newest.rsplit("-", 1)[1]) + 5
        launches = start(f"--set=lr_schedule.steps={last}", "--resume=auto")
        outputs = [launch.communicate(timeout=60)[0] for launch in launches]
        self.assertEqual([launch.returncode for launch in launches], [0, 0], outputs)
        self.assertIn(f"resuming from runs/test/checkpoints/{os.path.basename(newest)}", outputs[0])
        self.train("no-cable", 0, "--set=lr_schedule.shape=CONSTANT", "--set=telemetry.evaluate_every=0",
                   f"--set=lr_schedule.steps={last}")
        folder = f"runs/test/checkpoints/step-{last:010d}/"
        mended, straight = ({path: content for path, content in self.checkpoints(name).items()
                             if path.startswith(folder)} for name in ("cable", "no-cable"))
        self.assertEqual(len(straight), 4)
        self.assertTrue(mended == straight)

    def test_a_command_that_cannot_start_is_an_error(self):
        process = self.start("nothing", [LAUNCH, "--processes=2", "--", "./nowhere"])
        self.assertIn("launch: cannot start ./nowhere: No such file", process.communicate(timeout=60)[0])
        self.assertEqual(process.returncode, 2)


if __name__ == "__main__":
    unittest.main()
