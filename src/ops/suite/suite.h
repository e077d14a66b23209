// The cases on which every operator of every back end is tested and timed: one list for the scalar reference, for the CPU under
// each dispatch target and for GPUs.
//
// A case holds host tensors. A harness copies them to the memory of its back end (HostOperands below for CPUs), calls, and
// compares what was written with what the reference wrote:
//
//     for (const CaseSpec& spec : cases(CaseSet::awkward)) {
//       const Case made = spec.make(profile);
//       HostOperands wanted(made);
//       HostOperands found(made);
//       made.call(reference_context, wanted.operands());
//       made.call(cpu_context, found.operands());
//       for (size_t i = 0; i < made.tensors.size(); ++i) {
//         if (made.tensors[i].written()) difference(made.tensors[i], profile, found.view(i), wanted.view(i));
//       }
//     }
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ops/context.h"
#include "tensor/tensor.h"

namespace weft::ops {

enum class CaseSet : uint8_t {
  awkward,  // 1, 15, 16, 17, 31, 32, 33, 63, 64, 65 and 127 where vector code breaks; small
  k3,       // the sizes of Kimi K3 (K3 spec 0 and 1) and, where they differ in kind, of Qwen3-Next; up to 300 MB a case
};

// How a tensor takes part in the call.
enum class Role : uint8_t {
  input,   // read: activations, vectors, ids
  weight,  // read: bytes of a stored weight (u8), which promise no alignment
  state,   // read and written
  output,  // written; NaN (or -1) before
};

// How far a back end may be from the reference. In profile exact: max |a - b| <= exact * max(max |b|, magnitude). In profile
// bf16: |a - b| <= bf16 * max(max |b|, magnitude) + steps * 2^-7 |b| for each element, that is `steps` bfloat16 values apart.
// 0, 0 and no steps: the same bits. An i64 tensor holds one Sampled (sample.h) an element: equal ids, and the above for
// logprob.
struct Tolerance {
  double exact = 0.0;
  double bf16 = 0.0;
  int steps = 0;
  double magnitude = 0.0;  // of the terms, where the result may be small because they cancel
};

struct CaseTensor {
  std::string name;
  Role role = Role::input;
  Tensor initial;       // before the call
  Tolerance tolerance;  // of what is written
  [[nodiscard]] bool written() const { return role == Role::state || role == Role::output; }
};

// One for each tensor of the case, in order; in host or device memory. `call` forms views of it and never reads the data.
using Operands = std::span<const MutableTensorView>;

struct Case {
  std::vector<CaseTensor> tensors;
  int64_t bytes = 0;        // that the call must read and write at least
  double operations = 0.0;  // additions, multiplications, divisions, roots and exponentials
  std::function<void(Context&, Operands)> call;
};

// A case that is not made yet: its tensors can be large.
struct CaseSpec {
  std::string op;                     // "linear"
  std::string sizes;                  // "bf16 12288x7168 rows 4"
  std::function<Case(Profile)> make;  // the same values each time; activations of profile bf16 are bfloat16 values
};

// Every operator of ops.h and sample.h, grouped by operator.
[[nodiscard]] std::vector<CaseSpec> cases(CaseSet set);

// A copy of a case's tensors in host memory.
class HostOperands {
 public:
  // `weight_offset`: bytes by which stored weights miss the alignment of 64; 1 tests that kernels promise themselves none.
  explicit HostOperands(const Case& of, int64_t weight_offset = 0);

  [[nodiscard]] Operands operands() const { return views_; }
  [[nodiscard]] TensorView view(size_t tensor) const { return views_[tensor]; }

 private:
  std::vector<Tensor> memory_;
  std::vector<MutableTensorView> views_;
};

// Nothing if `found` is as close to `wanted` as `tensor` asks, else the worst element in words. Equal infinities are equal; a
// NaN equals nothing.
[[nodiscard]] std::optional<std::string> difference(const CaseTensor& tensor, Profile profile, const TensorView& found,
                                                    const TensorView& wanted);

}  // namespace weft::ops
