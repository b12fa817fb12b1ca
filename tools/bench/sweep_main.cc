#include "tools/bench/sweep.h"

int main(int argc, char** argv) { return shale::BenchSweep(argc, argv); }
