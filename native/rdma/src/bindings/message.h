// One message as Python holds it: the base of its handles. A type of its own, since it is made for each message and the
// time to make it is most of what a small message costs.
#pragma once

#include <pybind11/pybind11.h>

#include "api/operation.h"

namespace megatronapp::rdma {

// Adds the type `Message` to the module.
void add_message_type(pybind11::module_& module);

// An instance of `type`, which is `Message` or derived from it. The operation knows it as its owner while it lives.
pybind11::object make_message(pybind11::handle type, const OperationPtr& operation, pybind11::handle engine,
                              pybind11::handle tag, pybind11::handle tensor, pybind11::handle memory);

// Dtype, shape, whether on a GPU.
pybind11::tuple described(const Descriptor& what);

// Throws pybind11::type_error for anything else.
const OperationPtr& operation_of(pybind11::handle message);

}  // namespace megatronapp::rdma
