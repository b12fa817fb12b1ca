// How many trainers a test creates and destroys: --creations=N, 30 by default. creations.cc defines main().
#pragma once

namespace shale {

int Creations();

}  // namespace shale
