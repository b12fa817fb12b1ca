"""cc_grpc_library: the C++ code of a gRPC service."""

load("@cpp_httplib//:defs.bzl", "HAVE_HTTPLIB")
load(":cc.bzl", "cc_library")

# A value for target_compatible_with that leaves the target out of //... if the Debian packages are missing that
# tools/build_defs/service_packages.txt lists.
NEEDS_HTTPLIB = [] if HAVE_HTTPLIB else ["//tools/build_defs:libcpp-httplib-dev_was_missing_when_bazel_started"]

def cc_grpc_library(name, src, deps, **kwargs):
    """Compiles the services of one .proto file, which imports no other, to a C++ library.

    Args:
      name: The library. Callers include NAME.grpc.pb.h, where NAME.proto is src.
      src: The .proto file.
      deps: The cc_proto_library of its messages.
      **kwargs: As of cc_library.
    """
    stem = src[:-len(".proto")]
    native.genrule(
        name = name + "_sources",
        srcs = [src],
        outs = [stem + ".grpc.pb.h", stem + ".grpc.pb.cc"],
        cmd = " ".join([
            "$(location @com_google_protobuf//:bin/protoc)",
            "--plugin=protoc-gen-grpc=$(location @com_github_grpc_grpc//:bin/grpc_cpp_plugin)",
            "--grpc_out=$(GENDIR) $(SRCS)",
        ]),
        tools = [
            "@com_github_grpc_grpc//:bin/grpc_cpp_plugin",
            "@com_google_protobuf//:bin/protoc",
        ],
        target_compatible_with = kwargs.get("target_compatible_with", []),
    )
    cc_library(
        name = name,
        srcs = [stem + ".grpc.pb.cc"],
        hdrs = [stem + ".grpc.pb.h"],
        deps = deps + ["@com_github_grpc_grpc//:grpc++"],
        **kwargs
    )
