// A frame of the bulk ring: a descriptor, which the ring does not read, and its bytes, together one record
// (docs/agent.md).
#pragma once

#include <string>
#include <string_view>

#include "common/ring.h"

namespace megatronapp::common {

inline std::size_t padded(std::size_t bytes) { return (bytes + 7) & ~std::size_t{7}; }

// Copies a frame into the ring. Throws std::length_error for one that is larger than the ring's records may be; then the
// ring is as it was.
inline void write_frame(RingWriter& ring, std::string_view descriptor, std::string_view payload) {
    const std::size_t payload_at = sizeof(FrameHeader) + padded(descriptor.size());
    const std::size_t bytes = payload_at + padded(payload.size());
    if (bytes > ring.most_payload()) {
        throw std::length_error(
            "a frame of " + std::to_string(bytes) + " bytes; this ring takes at most " +
            std::to_string(ring.most_payload()));
    }
    char* frame = ring.claim(RecordKind::kFrame, bytes);
    const FrameHeader header{static_cast<std::uint32_t>(descriptor.size()), 0, payload.size()};
    std::memcpy(frame, &header, sizeof header);
    descriptor.copy(frame + sizeof header, descriptor.size());
    payload.copy(frame + payload_at, payload.size());
    ring.publish();
}

}  // namespace megatronapp::common
