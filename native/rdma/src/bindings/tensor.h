// A torch tensor as the engine sees it. Torch tells of it by DLPack's exchange API: nothing of torch is needed to build.
#pragma once

#include <pybind11/pybind11.h>

#include "api/message.h"

namespace megatronapp::rdma {

struct Tensor {
    Descriptor what;
    char* data = nullptr;
    int device = -1;         // of GPU memory
    void* stream = nullptr;  // of GPU memory: its device's current one
};

// Torch's names of the dtypes that can be moved, in their order on the wire.
pybind11::tuple dtype_names();

// False for one that is not one plain piece of memory of a known dtype. Throws pybind11::type_error for what is no tensor.
bool read_tensor(pybind11::handle tensor, Tensor& read);

pybind11::object without_gradient(pybind11::handle tensor);
// To be kept for itself: the program may give the tensor other memory meanwhile.
pybind11::object storage_of(pybind11::handle tensor);

}  // namespace megatronapp::rdma
