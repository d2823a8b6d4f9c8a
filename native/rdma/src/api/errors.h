// What a caller must tell apart.
#pragma once

#include <stdexcept>

namespace megatronapp::rdma {

// The caller's own open messages hold all that there is of something: only their end helps.
struct Exhausted : std::runtime_error {
    using std::runtime_error::runtime_error;
};

}  // namespace megatronapp::rdma
