"""@cudnn_frontend: the headers of cuDNN's frontend that tools/build_defs/install.sh installs, or an empty target.

Looks in $CUDNN_FRONTEND, a folder with include/cudnn_frontend.h, or in the user's cache. Without them, without a CUDA
toolkit, or without cudnn.h, our own kernels compute attention.
"""

_BUILD = """
package(default_visibility = ["//visibility:public"])
cc_library(
    name = "headers",
    hdrs = glob(["include/**/*.h"]),
    includes = ["include"],
)
"""

def _cudnn_configure_impl(rctx):
    environ = rctx.os.environ
    version = rctx.read(Label("//tools/build_defs:cudnn_frontend.txt")).split("==")[1].split(" ")[0]
    cache = environ.get("XDG_CACHE_HOME") or environ.get("HOME", "") + "/.cache"
    frontend = environ.get("CUDNN_FRONTEND") or "%s/shale/cudnn_frontend-%s" % (cache, version)
    cuda = environ.get("CUDA_HOME", "/usr/local/cuda")
    folders = [cuda + "/include", "/usr/include", "/usr/include/x86_64-linux-gnu", "/usr/include/aarch64-linux-gnu"]
    have = (rctx.path(cuda + "/bin/nvcc").exists and
            rctx.path(frontend + "/include/cudnn_frontend.h").exists and
            bool([f for f in folders if rctx.path(f + "/cudnn.h").exists]))
    if have:
        rctx.symlink(frontend + "/include", "include")
    rctx.file("BUILD", _BUILD)
    rctx.file("defs.bzl", "HAVE_CUDNN = %s\n" % have)

cudnn_configure = repository_rule(
    implementation = _cudnn_configure_impl,
    configure = True,
    environ = ["CUDA_HOME", "CUDNN_FRONTEND", "HOME", "XDG_CACHE_HOME"],
    local = True,
)
