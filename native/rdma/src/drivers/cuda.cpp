#include "drivers/cuda.h"

#include <stdexcept>

#include "drivers/library.h"

namespace megatronapp::rdma {

CudaDriver::CudaDriver() {
    const Library library("libcuda.so.1", "CUDA driver");
    library.find(context_get, "cuCtxGetCurrent");
    library.find(context_set, "cuCtxSetCurrent");
    library.find(host_register, "cuMemHostRegister_v2");
    library.find(host_unregister, "cuMemHostUnregister");
    library.find(host_device_pointer, "cuMemHostGetDevicePointer_v2");
    library.find(ipc_get, "cuIpcGetMemHandle");
    library.find(ipc_open, "cuIpcOpenMemHandle_v2");
    library.find(ipc_close, "cuIpcCloseMemHandle");
    library.find(pointer_attribute, "cuPointerGetAttribute");
    library.find(pointer_attributes, "cuPointerGetAttributes");
    library.find(stream_create, "cuStreamCreateWithPriority");
    library.find(stream_destroy, "cuStreamDestroy_v2");
    library.find(stream_synchronize, "cuStreamSynchronize");
    library.find(stream_wait_event, "cuStreamWaitEvent");
    library.find(stream_write, "cuStreamWriteValue32_v2");
    library.find(stream_writes, "cuStreamBatchMemOp_v2");
    library.find(stream_wait, "cuStreamWaitValue32_v2");
    library.find(copy, "cuMemcpyAsync");
    library.find(event_create, "cuEventCreate");
    library.find(event_destroy, "cuEventDestroy_v2");
    library.find(event_record, "cuEventRecord");
    library.find(event_query, "cuEventQuery");
    library.find(priorities, "cuCtxGetStreamPriorityRange");
    library.find(allocate, "cuMemAlloc_v2");
    library.find(release, "cuMemFree_v2");
}

const CudaDriver& CudaDriver::get() {
    static const CudaDriver driver;
    return driver;
}

bool is_shareable(CudaAddress address) {
    unsigned capable = 0;
    check_cuda(CudaDriver::get().pointer_attribute(&capable, CudaDriver::kIpcCapable, address), "cuPointerGetAttribute");
    return capable != 0;
}

void check_cuda(int status, const char* call) {
    if (status != 0) {
        throw std::runtime_error(std::string(call) + " failed with CUDA driver error " + std::to_string(status));
    }
}

}  // namespace megatronapp::rdma

// An allocator for torch.cuda.memory.CUDAPluggableAllocator: memory that other processes can always open, also where
// PyTorch's own allocator gives expandable segments.
extern "C" {

__attribute__((visibility("default"))) void* megatronapp_rdma_allocate(
    std::ptrdiff_t bytes, int /*device*/, void* /*stream*/) {
    megatronapp::rdma::CudaAddress address = 0;
    const int status =
        megatronapp::rdma::CudaDriver::get().allocate(&address, static_cast<std::size_t>(bytes > 0 ? bytes : 1));
    return status == 0 ? reinterpret_cast<void*>(address) : nullptr;
}

__attribute__((visibility("default"))) void megatronapp_rdma_release(
    void* address, std::ptrdiff_t /*bytes*/, int /*device*/, void* /*stream*/) {
    megatronapp::rdma::CudaDriver::get().release(reinterpret_cast<megatronapp::rdma::CudaAddress>(address));
}
}
