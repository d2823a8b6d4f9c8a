// What NCCL looks up in the library that NCCL_PROFILER_PLUGIN names: it takes the newest version that it knows.
#include "backends/interface.h"

#define EXPORTED __attribute__((visibility("default")))

extern "C" {
EXPORTED megatronapp::nccl::abi::Plugin ncclProfiler_v5 = megatronapp::nccl::kPlugin;
EXPORTED megatronapp::nccl::abi::Plugin ncclProfiler_v6 = megatronapp::nccl::kPlugin;
EXPORTED megatronapp::nccl::abi::Plugin ncclProfiler_v7 = megatronapp::nccl::kPlugin;
}
