"""shale_workspace: the external repositories that the targets of @shale need."""

load(":cuda_configure.bzl", "cuda_configure")
load(":cudnn_configure.bzl", "cudnn_configure")
load(":stubs.bzl", "offline_stubs")
load(":system_libs.bzl", "system_libs")

def shale_workspace():
    """Defines them. Builds need no network: each is a stub, or is generated from what the system has installed (Debian
    packages, CUDA toolkit). Call it before other rules that define repositories of the same names, or after them with
    the ones that are to be kept."""
    offline_stubs()
    system_libs()
    cuda_configure(name = "local_config_cuda")
    cudnn_configure(name = "cudnn_frontend")
