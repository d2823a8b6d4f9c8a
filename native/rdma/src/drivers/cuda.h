// The functions of the CUDA driver that the lane needs, opened at run time. Names, types and numbers: the CUDA driver
// API's reference (cuda.h of 12.0; they are part of its binary interface).
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/cuda.h"

namespace megatronapp::rdma {

using CudaAddress = std::uint64_t;

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

// CUmemAllocationProp: memory of one GPU that can be handed to other processes as a file descriptor.
struct CudaAllocation {
    int type = 1;          // CU_MEM_ALLOCATION_TYPE_PINNED
    int handle_types = 1;  // CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    int location_type = 1;  // CU_MEM_LOCATION_TYPE_DEVICE
    int device = 0;
    void* windows = nullptr;
    unsigned char flags[8] = {};
};
static_assert(sizeof(CudaAllocation) == 32);

// CUmemAccessDesc.
struct CudaAccess {
    int location_type = 1;  // CU_MEM_LOCATION_TYPE_DEVICE
    int device = 0;
    int flags = 3;  // CU_MEM_ACCESS_FLAGS_PROT_READWRITE
};

struct CudaDriver {
    // The one of this process. Throws std::runtime_error where there is no driver.
    static const CudaDriver& get();

    int (*context_get)(void**);
    int (*context_set)(void*);
    int (*host_register)(void*, std::size_t, unsigned);
    int (*host_unregister)(void*);
    int (*host_device_pointer)(CudaAddress*, void*, unsigned);
    int (*device_get)(int*);
    int (*granularity)(std::size_t*, const CudaAllocation*, int);
    int (*memory_create)(std::uint64_t*, std::size_t, const CudaAllocation*, std::uint64_t);
    int (*memory_release)(std::uint64_t);
    int (*memory_export)(int*, std::uint64_t, int, std::uint64_t);
    int (*memory_import)(std::uint64_t*, void*, int);
    int (*address_reserve)(CudaAddress*, std::size_t, std::size_t, CudaAddress, std::uint64_t);
    int (*address_free)(CudaAddress, std::size_t);
    int (*map)(CudaAddress, std::size_t, std::size_t, std::uint64_t, std::uint64_t);
    int (*unmap)(CudaAddress, std::size_t);
    int (*set_access)(CudaAddress, std::size_t, const CudaAccess*, std::size_t);
    int (*stream_create)(void**, unsigned, int);
    int (*stream_destroy)(void*);
    int (*stream_synchronize)(void*);
    int (*stream_query)(void*);
    int (*stream_capturing)(void*, int*);
    int (*exchange_capture_mode)(int*);
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

    static constexpr int kNotReady = common::kCudaNotReady;
    static constexpr unsigned kPortableMapped = 1 | 2;       // CU_MEMHOSTREGISTER_PORTABLE | _DEVICEMAP
    static constexpr int kFileDescriptor = 1;                // CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    static constexpr unsigned kAtLeast = 0;                  // CU_STREAM_WAIT_VALUE_GEQ
    static constexpr unsigned kNoTiming = 2;                 // CU_EVENT_DISABLE_TIMING
    static constexpr unsigned kNonBlocking = 1;              // CU_STREAM_NON_BLOCKING

private:
    CudaDriver();
};

using common::check_cuda;

// Whether what is given to the stream goes into a graph.
bool is_captured(void* stream);

// While it lives, this thread's calls do not end a capture into a graph that another thread has begun.
class CaptureTruce {
public:
    explicit CaptureTruce(bool needed);
    ~CaptureTruce();
    CaptureTruce(const CaptureTruce&) = delete;
    CaptureTruce& operator=(const CaptureTruce&) = delete;

private:
    bool needed_;
    int mode_ = 2;  // CU_STREAM_CAPTURE_MODE_RELAXED; then the thread's own
};

}  // namespace megatronapp::rdma
