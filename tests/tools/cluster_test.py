#!/usr/bin/env python3
"""Tests the launch files of tools/cluster, and torchrun: they start jobs, and start them again, as they say.

Where Slurm, Open MPI or PyYAML is missing, stand-ins take the place of srun, scontrol and mpirun, and the JobSet is not
looked at. Where torchrun is missing, it is not tried.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import unittest

_TRAIN = os.path.abspath("tools/train")
_CLUSTER = os.path.abspath("tools/cluster")
_JOB = """
name: "test"
model { decoder { family: GPT2 width: 16 layers: 1 heads: 2 } }
data { path: "text.txt" }
batch { global_batch: 4 micro_batch: 1 sequence_length: 8 }
sharding { ranks: 2 }
optimizer { learning_rate: 1e-2 }
lr_schedule { steps: 4 }
telemetry { peak_flops: 1e11 run_folder: "run" }
runtime { threads_per_rank: 1 cpu_matmuls: ONEDNN }
"""
# Starts the command twice, with the variables that srun and mpirun give, after their own options. Like srun, it returns
# the highest code.
_TWICE = r"""#!/usr/bin/env python3
import os, subprocess, sys
name, arguments = os.path.basename(sys.argv[0]), sys.argv[1:]
while arguments[0].startswith("-"):
    values = {"-x": 1, "-np": 1, "--mca": 2, "--host": 1}.get(arguments[0], 0)
    with open("calls", "a") as calls: print(name, *arguments[:1 + values], file=calls)
    arguments = arguments[1 + values:]
common = {"srun": dict(SLURM_STEP_NUM_TASKS="2", SLURM_STEP_TASKS_PER_NODE="2", SLURM_STEP_ID="0",
                       SLURM_STEP_NODELIST="here", SLURM_NODEID="0"),
          "mpirun": dict(OMPI_COMM_WORLD_SIZE="2", OMPI_COMM_WORLD_LOCAL_SIZE="2", PMIX_NAMESPACE="n")}[name]
ranks = {"srun": ["SLURM_PROCID", "SLURM_LOCALID"],
         "mpirun": ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "PMIX_RANK"]}[name]
started = [subprocess.Popen(arguments, env=dict(os.environ, **common, **dict.fromkeys(ranks, str(rank))))
           for rank in range(2)]
sys.exit(max(process.wait() for process in started))
"""
# Ends with the next of the codes in the file `codes`, and writes down why it was started.
_ENDS = r"""#!/bin/bash
echo "train $SHALE_RESTARTS $SHALE_RESTART_CAUSE: $*" >> calls
code=$(head -n 1 codes) && sed -i 1d codes && exit "$code"
"""


class ClusterTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.write("job.textproto", _JOB)
        self.write("text.txt", "The quick brown fox jumps over the lazy dog.\n" * 20)
        os.mkdir(os.path.join(self.folder, "bin"))

    def write(self, name, text, mode=0o600):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as out:
            out.write(text)
        os.chmod(path, mode)
        return path

    def read(self, name):
        with open(os.path.join(self.folder, name), encoding="utf-8") as lines:
            return lines.read().splitlines()

    def start(self, command, **variables):
        path = f"{os.path.join(self.folder, 'bin')}:{os.environ['PATH']}"
        environment = dict(os.environ, XDG_CACHE_HOME=self.folder, **{"PATH": path, **variables})
        environment.pop("BUILD_WORKING_DIRECTORY", None)
        process = subprocess.Popen(command, cwd=self.folder, env=environment, text=True, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def run_to_end(self, command, code=0, **variables):
        process = self.start(command, **variables)
        output = process.communicate(timeout=60)[0]
        self.assertEqual(process.returncode, code, output)
        return output

    def expect_trained(self, output, launcher):
        self.assertRegex(output, rf"process 0 of 2, 0 of 2 on this host, by {launcher}")
        self.assertIn("done; the run is in run", output)
        self.run_to_end([_TRAIN, "--job=job.textproto", "--set=telemetry.run_folder=threads"])
        run, threads = ([(row["step"], row["loss"]) for row in map(json.loads, self.read(f"{name}/metrics.jsonl"))]
                        for name in ("run", "threads"))
        self.assertEqual([step for step, _ in run], [1, 2, 3, 4])
        self.assertEqual(run, threads)

    @staticmethod
    def free_port():
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            return str(free.getsockname()[1])

    def slurm(self, code=0, **variables):
        return self.run_to_end(["bash", os.path.join(_CLUSTER, "train.slurm"), "--job=job.textproto"], code,
                               SLURM_JOB_ID="77", SLURM_JOB_NUM_NODES="2", **variables)

    def test_slurm_trains(self):
        self.write("bin/srun", _TWICE, 0o700)
        self.expect_trained(self.slurm(TRAIN=_TRAIN, MASTER_PORT=self.free_port()), "Slurm")

    def test_slurm_starts_again_until_the_job_is_over(self):
        self.write("bin/srun", "#!/bin/bash\nexec \"${@:3}\"\n", 0o700)
        self.write("bin/scontrol", "#!/bin/bash\necho scontrol \"$@\" >> calls\n", 0o700)
        train = self.write("bin/ends", _ENDS, 0o700)
        killed, wrong, usr1, term = 128 + signal.SIGKILL, 2, 128 + signal.SIGUSR1, 128 + signal.SIGTERM
        began = "train {} Slurm queued the job again: --resume=auto --grace_seconds=30 --job=job.textproto"
        again = "train {} srun ended with code {}: --resume=auto --grace_seconds=30 --job=job.textproto"
        for codes, queued, code, calls in (
            ((killed, 0), 0, 0, [began.format(0), again.format(1, killed)]),
            ((killed, 1, 3, 1), 0, 1, [began.format(0), again.format(1, killed), again.format(2, 1),
                                       again.format(3, 3)]),
            ((wrong,), 0, wrong, [began.format(0)]),
            ((term,), 2, term, [began.format(2)]),
            ((usr1,), 1, 0, [began.format(1), "scontrol requeue 77"]),
        ):
            with self.subTest(codes=codes):
                self.write("codes", "".join(f"{code}\n" for code in codes))
                self.write("calls", "")
                self.slurm(code, TRAIN=train, SLURM_RESTART_COUNT=str(queued))
                self.assertEqual(self.read("calls"), calls)
                self.assertEqual(self.read("codes"), [])

    @unittest.skipUnless(shutil.which("sbatch"), "sbatch is not installed")
    def test_sbatch_knows_the_options(self):
        script = os.path.join(_CLUSTER, "train.slurm")
        output = subprocess.run(["sbatch", "--test-only", script], capture_output=True, text=True, check=False).stderr
        for wrong in ("unrecognized option", "Invalid", "invalid"):
            self.assertNotIn(wrong, output)

    def mpirun(self):
        return self.run_to_end([os.path.join(_CLUSTER, "mpirun.sh"), "-np", "2", "--", _TRAIN, "--job=job.textproto"],
                               MASTER_PORT=self.free_port(), OMPI_ALLOW_RUN_AS_ROOT="1",
                               OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMPI_MCA_rmaps_base_oversubscribe="1")

    def test_mpirun_trains(self):
        self.write("bin/mpirun", _TWICE, 0o700)
        self.expect_trained(self.mpirun(), "Open MPI")
        self.assertIn("mpirun -x SHALE_TOKEN", self.read("calls"))
        usage = self.run_to_end([os.path.join(_CLUSTER, "mpirun.sh"), "-np", "2"], 2)
        self.assertIn("usage: ", usage)

    @unittest.skipUnless(shutil.which("mpirun"), "mpirun is not installed")
    def test_the_installed_mpirun_trains(self):
        self.expect_trained(self.mpirun(), "Open MPI")

    @unittest.skipUnless(shutil.which("torchrun"), "torchrun is not installed")
    def test_the_installed_torchrun_trains(self):
        self.expect_trained(self.run_to_end(["torchrun", "--standalone", "--nproc-per-node=2", "--no-python", _TRAIN,
                                             "--job=job.textproto"]), "torchrun")

    def test_the_pods_of_the_jobset_train(self):
        try:
            import yaml
        except ImportError:
            self.skipTest("PyYAML is not installed")
        with open(os.path.join(_CLUSTER, "jobset.yaml"), encoding="utf-8") as text:
            jobset = yaml.safe_load(text)
        # What JobSet and Kubernetes refuse otherwise.
        self.assertEqual([jobset["apiVersion"], jobset["kind"]], ["jobset.x-k8s.io/v1alpha2", "JobSet"])
        self.assertLessEqual(jobset["spec"].keys(), {"failurePolicy", "network", "replicatedJobs", "successPolicy"})
        for rule in jobset["spec"]["failurePolicy"]["rules"]:
            self.assertRegex(rule["name"], r"\A[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?\Z")
            self.assertIn(rule["action"], {"FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts"})
            self.assertEqual(rule["onJobFailureReasons"], ["PodFailurePolicy"])
        (replicated,) = jobset["spec"]["replicatedJobs"]
        job = replicated["template"]["spec"]
        pod = job["template"]["spec"]
        (container,) = pod["containers"]
        variables = {entry["name"]: entry.get("value", "2") for entry in container["env"]}  # Restarts: from a label.
        name = jobset["metadata"]["name"]
        self.assertEqual(variables["MASTER_ADDR"], f"{name}-{replicated['name']}-0-0.{name}")
        self.assertEqual([job["completionMode"], job["backoffLimit"], pod["restartPolicy"]], ["Indexed", 0, "Never"])
        pods = {job["completions"], job["parallelism"], int(variables["WORLD_SIZE"])}
        self.assertEqual(pods, {2})
        for rule in job["podFailurePolicy"]["rules"]:
            self.assertEqual([rule["action"], rule["onExitCodes"]["containerName"]], ["FailJob", container["name"]])
        self.assertIn(f"--grace_seconds={pod['terminationGracePeriodSeconds']}", container["args"])
        self.assertEqual({mount["name"] for mount in container["volumeMounts"]},
                         {volume["name"] for volume in pod["volumes"]})
        # On this host, process 0 and the volumes are elsewhere.
        variables.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=self.free_port(),
                         SHALE_TOKEN_FILE=self.write("token", "secret"))
        places = {"/job/job.textproto": "job.textproto", "/runs/shale": "run"}
        arguments = container["args"]
        for path, place in places.items():
            arguments = [argument.replace(path, place) for argument in arguments]
        self.assertEqual(container["command"], ["train"])
        pods = [self.start([_TRAIN, *arguments], JOB_COMPLETION_INDEX=str(index), **variables) for index in range(2)]
        outputs = [pod.communicate(timeout=60)[0] for pod in pods]
        self.assertEqual([pod.returncode for pod in pods], [0, 0], outputs)
        self.assertIn("process 0 of 2, by the indexed Job; process 0 is at 127.0.0.1", outputs[0])
        rows = [json.loads(row) for row in self.read("run/metrics.jsonl")]
        self.assertEqual(rows[0], {"step": 0, "restart": 2, "cause": variables["SHALE_RESTART_CAUSE"]})
        self.assertEqual([row.get("step") for row in rows[1:]], [1, 2, 3, 4])


if __name__ == "__main__":
    unittest.main()
