// Lanes whose engine is closed, but with which the GPU is not through yet: other work of the program may hold up its streams
// for as long as it likes, a collective with a dead rank for ever.
#pragma once

#include <cstddef>
#include <memory>

#include "lanes/lane.h"

namespace megatronapp::rdma {

void keep_until_settled(std::unique_ptr<Lane> lane);
// Ends those that have settled; how many have not.
std::size_t end_settled();

}  // namespace megatronapp::rdma
