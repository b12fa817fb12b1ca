"""@local_config_cuda: the CUDA toolkit in $CUDA_HOME or /usr/local/cuda, or empty targets if there is none."""

_WITHOUT = """
package(default_visibility = ["//visibility:public"])
cc_library(name = "headers")
cc_library(name = "cudart")
cc_library(name = "nvtx")
"""

_WITH = """
package(default_visibility = ["//visibility:public"])

# The headers for C++ (nvcc finds its own), without thrust, cub and libcu++, which only nvcc compiles.
cc_library(
    name = "headers",
    hdrs = glob(["include/*.h", "include/*.hpp", "include/crt/**"]),
    includes = ["include"],
)

# Headers only. They load a profiler's library if there is one.
cc_library(
    name = "nvtx",
    hdrs = glob(["include/nvtx3/**"]),
    defines = ["SHALE_HAVE_NVTX"],
    includes = ["include"],
    linkopts = ["-ldl"],
)

# Linked statically, so that a program starts on a machine without CUDA. The first call then reports that there is no
# driver.
cc_library(
    name = "cudart",
    srcs = ["lib/libcudart_static.a"],
    linkopts = ["-ldl", "-lrt", "-pthread"],
    linkstatic = True,
    deps = [":headers"],
)
"""

_DEFS = """
HAVE_CUDA = {have}
NVCC = {nvcc}
CUDA_VERSION = {version}
"""

def _cuda_configure_impl(rctx):
    home = rctx.os.environ.get("CUDA_HOME", "/usr/local/cuda")
    nvcc = rctx.path(home + "/bin/nvcc")
    if not nvcc.exists:
        rctx.file("BUILD", _WITHOUT)
        rctx.file("defs.bzl", _DEFS.format(have = False, nvcc = repr(""), version = repr("")))
        return
    found = rctx.execute([str(nvcc), "--version"])
    if found.return_code != 0 or "release " not in found.stdout:
        fail("%s --version fails: %s%s" % (nvcc, found.stdout, found.stderr))
    version = found.stdout.split("release ")[1].strip().split("\n")[0]
    rctx.symlink(home + "/include", "include")
    rctx.symlink(home + "/lib64/libcudart_static.a", "lib/libcudart_static.a")
    rctx.file("BUILD", _WITH)
    rctx.file("defs.bzl", _DEFS.format(have = True, nvcc = repr(str(nvcc)), version = repr(version)))

cuda_configure = repository_rule(
    implementation = _cuda_configure_impl,
    configure = True,
    environ = ["CUDA_HOME"],
    local = True,
)
