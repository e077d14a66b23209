// Names that both ends of a call use.
#pragma once

#include <string>

#include <grpcpp/support/status.h>

namespace weft {

inline constexpr const char* kStreamMethod = "/weft.Stage/Stream";
inline constexpr const char* kAcceptedKey = "weft-accepted";  // initial metadata of the server: the call is accepted
inline constexpr const char* kTokenKey = "weft-token-bin";    // of the client: the cluster's token, over TLS only
inline constexpr const char* kNonceKey = "weft-nonce-bin";    // of both: TokenChallenge
inline constexpr const char* kProofKey = "weft-proof-bin";    // of the server: TokenChallenge

// A status with `message`, which is cut visibly to what fits into the trailers of a call.
[[nodiscard]] grpc::Status refusal(grpc::StatusCode code, const std::string& message);

}  // namespace weft
