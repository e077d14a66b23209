// Highway's targets of this program. Include before any header of Highway.
//
// The kernels keep vectors in arrays, which the sizeless vectors of SVE and RVV forbid; SSSE3 and the AVX-512 supersets would
// double compile time for kernels that gain nothing from them.
#pragma once

#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
