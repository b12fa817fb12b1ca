"""Compiler options for files that include Highway."""

# The instruction set is chosen at run time. Three of Highway's x86 targets are built: portable, AVX2 and AVX-512.
HIGHWAY_COPTS = [
    "-DHWY_SHARED_DEFINE",
    "-DHWY_DISABLED_TARGETS=(HWY_SSSE3|HWY_SSE4|HWY_AVX3_DL)",
]

# The same and SSE4.
HIGHWAY_COPTS_WITH_SSE4 = [
    "-DHWY_SHARED_DEFINE",
    "-DHWY_DISABLED_TARGETS=(HWY_SSSE3|HWY_AVX3_DL)",
]
