#include <cublasLt.h>
#include <cuda_bf16.h>

#include "ops/cuda/elementwise.cuh"
#include "ops/cuda/gemm.h"
#include "tensor/workspace.h"

namespace weft::ops::cuda {
namespace {

constexpr int64_t kFewestRows = 16;
constexpr int64_t kVector = 8;  // columns and outputs that cuBLASLt's aligned kernels take at a time
constexpr int64_t kWorkspaceBytes = 32LL << 20;

void check(cublasStatus_t status, std::string_view what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  fail(ErrorKind::internal, "cublasLt", "{}: wanted success, found: {}", what, cublasLtGetStatusString(status));
}

// Owns one object of the library.
template <class T, cublasStatus_t (*kDestroy)(T)>
struct Owned {
  T object = nullptr;
  Owned() = default;
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  ~Owned() { (void)kDestroy(object); }
};

struct Handle : Owned<cublasLtHandle_t, cublasLtDestroy> {
  Handle() { check(cublasLtCreate(&object), "handle"); }
};
cublasLtHandle_t handle() {
  static const Handle owned;
  return owned.object;
}

struct Layout : Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy> {
  Layout(cudaDataType_t type, int64_t rows, int64_t columns) {  // column-major, without gaps
    check(cublasLtMatrixLayoutCreate(&object, type, static_cast<uint64_t>(rows), static_cast<uint64_t>(columns), rows),
          "layout");
  }
};

}  // namespace

bool gemm_fits(const Context& context, const TensorView& x, const WeightView& weight) {
  return context.rounds() && weight.format == WeightFormat::bf16 && x.shape[0] >= kFewestRows && weight.in % kVector == 0 &&
         weight.out % kVector == 0 && reinterpret_cast<uintptr_t>(weight.data) % 16 == 0;
}

void gemm(Context& context, TensorView x, const WeightView& weight, MutableTensorView y) {
  const Workspace::Scope scope(*context.workspace);
  const int64_t rows = x.shape[0];
  const MutableTensorView narrow = context.workspace->take(x.shape, DType::bf16);
  const float* from = floats(x);
  auto* to = reinterpret_cast<__nv_bfloat16*>(narrow.data);
  for_each_element(context, x.elements(), [=] __device__(int64_t i) { to[i] = __float2bfloat16(from[i]); }, "linear");

  // Row-major matrices are column-major ones transposed: y^T [out, rows] = W [out, in] x^T [in, rows].
  Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy> product;
  check(cublasLtMatmulDescCreate(&product.object, CUBLAS_COMPUTE_32F, CUDA_R_32F), "product");
  const cublasOperation_t transposed = CUBLAS_OP_T;
  check(cublasLtMatmulDescSetAttribute(product.object, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed), "product");
  const Layout a(CUDA_R_16BF, weight.in, weight.out);
  const Layout b(CUDA_R_16BF, weight.in, rows);
  const Layout d(CUDA_R_32F, weight.out, rows);
  Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy> preference;
  check(cublasLtMatmulPreferenceCreate(&preference.object), "preference");
  const auto workspace_bytes = static_cast<uint64_t>(kWorkspaceBytes);
  check(cublasLtMatmulPreferenceSetAttribute(preference.object, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace_bytes,
                                             sizeof workspace_bytes),
        "preference");
  cublasLtMatmulHeuristicResult_t choice{};
  int found = 0;
  check(cublasLtMatmulAlgoGetHeuristic(handle(), product.object, a.object, b.object, d.object, d.object, preference.object, 1,
                                       &choice, &found),
        "choice");
  if (found == 0)
    fail(ErrorKind::internal, "cublasLt", "{} rows, [{}, {}]: wanted an algorithm, found none", rows, weight.out, weight.in);
  const MutableTensorView workspace = context.workspace->take({kWorkspaceBytes}, DType::u8);
  const float one = 1.0F;
  const float zero = 0.0F;
  check(cublasLtMatmul(handle(), product.object, &one, weight.data, a.object, narrow.data, b.object, &zero, y.data, d.object,
                       y.data, d.object, &choice.algo, workspace.data, workspace_bytes, stream_of(context)),
        "product");
}

}  // namespace weft::ops::cuda
