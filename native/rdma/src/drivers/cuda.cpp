#include "drivers/cuda.h"

#include <dlfcn.h>
#include <stdexcept>

namespace megatronapp::rdma {

namespace {

template <typename Function>
void find(void* library, Function& function, const char* name) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    if (function == nullptr) {
        throw std::runtime_error(std::string("the CUDA driver has no ") + name);
    }
}

}  // namespace

CudaDriver::CudaDriver() {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
        throw std::runtime_error("no CUDA driver: libcuda.so.1 can't be opened");
    }
    find(library, context_get, "cuCtxGetCurrent");
    find(library, context_set, "cuCtxSetCurrent");
    find(library, host_register, "cuMemHostRegister_v2");
    find(library, host_unregister, "cuMemHostUnregister");
    find(library, host_device_pointer, "cuMemHostGetDevicePointer_v2");
    find(library, ipc_get, "cuIpcGetMemHandle");
    find(library, ipc_open, "cuIpcOpenMemHandle_v2");
    find(library, ipc_close, "cuIpcCloseMemHandle");
    find(library, pointer_attribute, "cuPointerGetAttribute");
    find(library, address_range, "cuMemGetAddressRange_v2");
    find(library, stream_create, "cuStreamCreateWithPriority");
    find(library, stream_destroy, "cuStreamDestroy_v2");
    find(library, stream_synchronize, "cuStreamSynchronize");
    find(library, stream_wait_event, "cuStreamWaitEvent");
    find(library, stream_write, "cuStreamWriteValue32_v2");
    find(library, stream_wait, "cuStreamWaitValue32_v2");
    find(library, copy, "cuMemcpyAsync");
    find(library, event_create, "cuEventCreate");
    find(library, event_destroy, "cuEventDestroy_v2");
    find(library, event_record, "cuEventRecord");
    find(library, event_query, "cuEventQuery");
    find(library, priorities, "cuCtxGetStreamPriorityRange");
    find(library, allocate, "cuMemAlloc_v2");
    find(library, release, "cuMemFree_v2");
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
