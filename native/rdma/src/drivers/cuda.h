// The functions of the CUDA driver that the lane needs, opened at run time. Names, types and numbers: the CUDA driver
// API's reference (cuda.h of 12.0; they are part of its binary interface).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace megatronapp::rdma {

using CudaAddress = std::uint64_t;

struct CudaIpcHandle {
    unsigned char bytes[64];
};

// CUstreamBatchMemOpParams.
struct CudaStreamWrite {
    unsigned operation = 2;  // CU_STREAM_MEM_OP_WRITE_VALUE_32
    CudaAddress address;
    std::uint64_t value;
    unsigned flags = 0;
    CudaAddress alias = 0;
    std::uint64_t padding = 0;
};
static_assert(sizeof(CudaStreamWrite) == 48);

struct CudaDriver {
    // The one of this process. Throws std::runtime_error where there is no driver.
    static const CudaDriver& get();

    int (*context_get)(void**);
    int (*context_set)(void*);
    int (*host_register)(void*, std::size_t, unsigned);
    int (*host_unregister)(void*);
    int (*host_device_pointer)(CudaAddress*, void*, unsigned);
    int (*ipc_get)(CudaIpcHandle*, CudaAddress);
    int (*ipc_open)(CudaAddress*, CudaIpcHandle, unsigned);
    int (*ipc_close)(CudaAddress);
    int (*pointer_attribute)(void*, int, CudaAddress);
    int (*pointer_attributes)(unsigned, int*, void**, CudaAddress);
    int (*stream_create)(void**, unsigned, int);
    int (*stream_destroy)(void*);
    int (*stream_synchronize)(void*);
    int (*stream_wait_event)(void*, void*, unsigned);
    int (*stream_write)(void*, CudaAddress, std::uint32_t, unsigned);
    int (*stream_writes)(void*, unsigned, CudaStreamWrite*, unsigned);
    int (*stream_wait)(void*, CudaAddress, std::uint32_t, unsigned);
    int (*copy)(CudaAddress, CudaAddress, std::size_t, void*);
    int (*event_create)(void**, unsigned);
    int (*event_destroy)(void*);
    int (*event_record)(void*, void*);
    int (*event_query)(void*);
    int (*priorities)(int*, int*);
    int (*allocate)(CudaAddress*, std::size_t);
    int (*release)(CudaAddress);

    static constexpr int kNotReady = 600;
    static constexpr unsigned kPortableMapped = 1 | 2;       // CU_MEMHOSTREGISTER_PORTABLE | _DEVICEMAP
    static constexpr unsigned kLazyPeerAccess = 1;           // CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
    static constexpr unsigned kAtLeast = 0;                  // CU_STREAM_WAIT_VALUE_GEQ
    static constexpr unsigned kNoTiming = 2;                 // CU_EVENT_DISABLE_TIMING
    static constexpr unsigned kNonBlocking = 1;              // CU_STREAM_NON_BLOCKING
    static constexpr int kBufferId = 7;                      // CU_POINTER_ATTRIBUTE_BUFFER_ID
    static constexpr int kIpcCapable = 10;                   // CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE
    static constexpr int kRangeStart = 11;                   // CU_POINTER_ATTRIBUTE_RANGE_START_ADDR

private:
    CudaDriver();
};

// Whether other processes can open this GPU memory. Throws std::runtime_error when it is none.
bool is_shareable(CudaAddress address);

// Throws std::runtime_error that names the call.
void check_cuda(int status, const char* call);

}  // namespace megatronapp::rdma
