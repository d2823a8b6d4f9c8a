// Opening the CUDA driver, and what its calls answer. Each wheel names the functions that it needs.
#pragma once

#include <stdexcept>
#include <string>

#include "common/library.h"

namespace megatronapp::common {

constexpr int kCudaNotReady = 600;

// Throws std::runtime_error where there is no driver.
inline Library open_cuda_driver() { return {"libcuda.so.1", "CUDA driver"}; }

// Throws std::runtime_error that names the call.
inline void check_cuda(int status, const char* call) {
    if (status != 0) {
        throw std::runtime_error(std::string(call) + " failed with CUDA driver error " + std::to_string(status));
    }
}

}  // namespace megatronapp::common
