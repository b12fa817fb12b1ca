"""law_library and law_test of //tests/engine: laws of training steps, and a backend on which they are tested."""

load(":tests.bzl", "cc_library", "cc_test")

def law_library(name, deps = [], **kwargs):
    """Laws, with what most of them depend on. Whoever links it tests them, on the TestedBackend that it links too."""
    cc_library(
        name = name,
        testonly = True,
        alwayslink = True,
        deps = deps + [
            "//engine/compile/model",
            "//engine/compile/step",
            "//kernels:integers",
            "//kernels:ops",
            "//tests/engine:job_harness",
            "//tests/engine:law_support",
            "//tests/engine:tested_backend",
            "@com_google_absl//absl/strings",
            "@com_google_absl//absl/types:span",
            "@com_google_googletest//:gtest",
        ],
        **kwargs
    )

def law_test(name, laws, backend = "cpu", size = "medium", **kwargs):
    """Tests law libraries on a backend: "cpu", or "cuda_on_host", which stands in for a GPU."""
    cc_test(
        name = name,
        size = size,
        deps = laws + ["//tests/engine:tested_" + backend, "@com_google_googletest//:gtest_main"],
        **kwargs
    )
