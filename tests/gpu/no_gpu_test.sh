#!/usr/bin/env bash
# Checks that without a GPU the program of GPU tests prints one line and fails, that it holds every suite, and that it
# starts on machines that have none of CUDA's libraries.
set -u
program=$1
shift
fail() {
  echo "FAILED: $*"
  exit 1
}

output=$(CUDA_VISIBLE_DEVICES= "$program" 2>&1)
status=$?
[ $status -eq 1 ] || fail "exit status $status, wanted 1: $output"
[ "$(wc -l <<<"$output")" -eq 1 ] || fail "wanted one line: $output"
[[ $output == "gpu_tests: "*GPU* ]] || fail "the line does not tell what is missing: $output"

tests=$(CUDA_VISIBLE_DEVICES= "$program" --gtest_list_tests) || fail "no list of tests"
for suite in GpuModules Norm/OpConformance MatMul CudaNorms Gpu/DeviceConformance GpuDeviceDeathTest \
  StreamOrdered/CommunicatorConformance NcclGpuTest NcclProcesses GpuMatMulTest StepLaws MemoryLaws \
  CommunicationLaws GraphLaws Jobs/JobLaws "$@"; do
  grep -q "^$suite" <<<"$tests" || fail "no tests of $suite"
done

python3 tests/gpu/kit_cases.py <<<"$tests" || fail "the GPU kit's orders"

linked=$(ldd "$program") || fail "ldd"
grep -Eqi 'cuda|cublas|cudnn|nccl|dnnl|gomp' <<<"$linked" && fail "linked at start: $linked"
exit 0
