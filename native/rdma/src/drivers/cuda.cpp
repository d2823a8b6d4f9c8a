#include "drivers/cuda.h"

namespace megatronapp::rdma {

CudaDriver::CudaDriver() {
    const common::Library library = common::open_cuda_driver();
    library.find(context_get, "cuCtxGetCurrent");
    library.find(context_set, "cuCtxSetCurrent");
    library.find(host_register, "cuMemHostRegister_v2");
    library.find(host_unregister, "cuMemHostUnregister");
    library.find(host_device_pointer, "cuMemHostGetDevicePointer_v2");
    library.find(device_get, "cuCtxGetDevice");
    library.find(granularity, "cuMemGetAllocationGranularity");
    library.find(memory_create, "cuMemCreate");
    library.find(memory_release, "cuMemRelease");
    library.find(memory_export, "cuMemExportToShareableHandle");
    library.find(memory_import, "cuMemImportFromShareableHandle");
    library.find(address_reserve, "cuMemAddressReserve");
    library.find(address_free, "cuMemAddressFree");
    library.find(map, "cuMemMap");
    library.find(unmap, "cuMemUnmap");
    library.find(set_access, "cuMemSetAccess");
    library.find(stream_create, "cuStreamCreateWithPriority");
    library.find(stream_destroy, "cuStreamDestroy_v2");
    library.find(stream_synchronize, "cuStreamSynchronize");
    library.find(stream_capturing, "cuStreamIsCapturing");
    library.find(exchange_capture_mode, "cuThreadExchangeStreamCaptureMode");
    library.find(stream_query, "cuStreamQuery");
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
}

const CudaDriver& CudaDriver::get() {
    static const CudaDriver driver;
    return driver;
}

CaptureTruce::CaptureTruce(bool needed) : needed_(needed) {
    if (needed_) {
        CudaDriver::get().exchange_capture_mode(&mode_);
    }
}

CaptureTruce::~CaptureTruce() {
    if (needed_) {
        CudaDriver::get().exchange_capture_mode(&mode_);
    }
}

bool is_captured(void* stream) {
    int status = 0;
    return CudaDriver::get().stream_capturing(stream, &status) == 0 && status != 0;
}

}  // namespace megatronapp::rdma
