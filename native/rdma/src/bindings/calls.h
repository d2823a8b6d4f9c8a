// Calls for each message from Python, of C's calling convention: pybind11's own way to a function of so many arguments takes
// a fifth of the time that a small message needs.
#pragma once

#include <pybind11/pybind11.h>

#include "core/engine.h"

namespace megatronapp::rdma {

// 64 bits: kind 4 | round 12 | chunk 8 | microbatch 20 | slot 4 | source rank 16. Throws pybind11::value_error.
std::uint64_t pack_tag(const pybind11::tuple& tag, int source);

// Adds the methods `post` and `wait` to the type; _native.pyi says what they take.
void add_calls(pybind11::handle type);

}  // namespace megatronapp::rdma
