// Memory that two ranks of one host share: one segment a direction, made by the receiver.
//
// An anonymous file handed over a Unix socket: it has no name, so that nothing is left when both are killed, and it
// does not count against /dev/shm.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "api/message.h"

namespace megatronapp::rdma {

constexpr std::size_t kLine = 64;
constexpr std::size_t kMailSlots = 1024;
constexpr std::size_t kDataSlots = 16;
constexpr std::size_t kDataSlotBytes = 256 << 10;
constexpr std::size_t kFlagSlots = 1024;

struct Chunk {
    std::uint64_t receive;
    std::uint64_t offset;
    std::uint32_t bytes;
    std::uint32_t checksum;
    std::uint32_t last;
    std::uint32_t read_ns;  // written by the reader: how long it copied, of large chunks
};

// One writer, one reader.
struct Cursors {
    alignas(kLine) std::atomic<std::uint64_t> head;  // written by the writer
    alignas(kLine) std::atomic<std::uint64_t> tail;  // written by the reader
};

// Of one receive into GPU memory: counters that streams and hosts write and wait for.
struct alignas(kLine) StreamFlags {
    std::atomic<std::uint32_t> ready;
    std::atomic<std::uint32_t> done;
};

struct SegmentLayout {
    // Set while the maker's threads sleep and want a doorbell.
    alignas(kLine) std::atomic<std::uint32_t> sleeping;
    // Set by the sender that lets its copies go before the receiver's blocks are ready: none of them is to be believed.
    alignas(kLine) std::atomic<std::uint32_t> abandoned;
    Cursors mail;
    Cursors data;
    alignas(kLine) Message messages[kMailSlots];
    alignas(kLine) Chunk chunks[kDataSlots];
    alignas(4096) StreamFlags flags[kFlagSlots];
    alignas(4096) char slots[kDataSlots][kDataSlotBytes];
};

class Segment {
public:
    // An anonymous file of the right size. Throws std::system_error when there is no memory for it.
    static int make();

    // Maps it; the descriptor stays the caller's. Throws std::system_error.
    explicit Segment(int descriptor);
    ~Segment();
    Segment(const Segment&) = delete;
    Segment& operator=(const Segment&) = delete;

    SegmentLayout* operator->() const { return layout_; }

private:
    SegmentLayout* layout_;
};

}  // namespace megatronapp::rdma
