// The cores' own messages.
#pragma once

#include "api/message.h"

namespace megatronapp::rdma {

inline Message of_kind(MessageKind kind, std::uint64_t receive = 0, std::uint64_t tag = 0) {
    Message message;
    message.kind = kind;
    message.receive = receive;
    message.tag = tag;
    return message;
}

}  // namespace megatronapp::rdma
