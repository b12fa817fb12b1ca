"""bench_binary and bench_library: cc_binary and cc_library of //tools/bench, with what most benches depend on."""

load(":cc.bzl", "cc_binary", "cc_library")

_MOST = [
    "//kernels:check",
    "@com_google_absl//absl/status",
    "@com_google_absl//absl/status:statusor",
    "@com_google_absl//absl/strings",
]

def bench_binary(name, deps = [], **kwargs):
    """A bench that runs jobs or kernels on the CPU."""
    cc_binary(
        name = name,
        deps = deps + _MOST + [
            "//engine/run/backends:cpu",
            "//engine/run/backends:job_backend",
            "//tools/bench:support",
            "//tools:command_line",
            "@com_google_absl//absl/strings:str_format",
        ],
        **kwargs
    )

def bench_library(name, deps = [], **kwargs):
    cc_library(name = name, deps = deps + _MOST, **kwargs)
