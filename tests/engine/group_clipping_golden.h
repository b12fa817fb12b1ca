// Written by tests/parity/make_clipping_goldens.py, with PyTorch.
#pragma once

namespace shale::testing {

// The loss of each step.
inline constexpr float kGroupClippedLosses[] = {
    2.94832778f, 2.92786622f, 2.87722707f, 2.87928987f, 2.88582397f, 2.71141529f, 2.58568978f, 2.55084205f,
    2.44115520f, 2.54751873f, 2.23673987f, 1.88313437f, 1.86124456f, 1.78437376f, 2.11002278f, 1.80976486f,
    1.32816827f, 1.35370982f, 1.49328053f, 1.94784200f, 1.61057580f, 1.08807373f, 1.04585540f, 1.27180171f,
    1.71580064f, 1.27731621f, 0.91175985f, 0.78311366f, 1.07757759f, 1.35837924f, 1.02330482f, 0.83196849f,
};

}  // namespace shale::testing
